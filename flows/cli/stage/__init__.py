"""Work by hand: one stage, a tool server, the engine's hashes.

  rft stage run baseline                      one stage, on what data/ holds
  rft stage tools recipes/icd10 --port 8100   serve a recipe's tools and grader
  rft stage engine                            before `dvc repro`: which engine the stages run with

`rft run` does all this by itself. Nothing that is done by hand is recorded.
"""
