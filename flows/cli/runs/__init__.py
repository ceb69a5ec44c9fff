"""List the runs; read their reports, compare, extend or cancel them.

  rft runs                       how each run ended, and what waits
  rft runs compare A B           settings, data and metrics side by side
  rft runs report RUN --open     its page, in the browser
  rft runs extend RUN            look again at an inconclusive one, on more test examples
  rft runs cancel RUN            stop one in order
  rft runs gc                    remove what is past its retention

RUN is a name from the list, or any unique part of one.
"""
