"""An audit: what does a served model rest on, and what rests on a conversation?

Everything that a model came from is named by a hash somewhere: the ledger's entries in a chain, the
run's revision in the request, every file in its dvc.lock, every file of a folder in a list. An
audit follows these names, recomputes each hash and signature, and says of each link in which state
it is (rft/reports/audit.py). A link that nobody could look at is never shown as verified.

asking      the questions, as people ask them; start here
graph       nodes and links; a check that raises gives its link a state
store       bytes from Git and DVC's cache, hashed; what is missing is fetched by hash
lock        dvc.lock and dvc.yaml of a revision
shown       what MLflow and the champion's file show
aliases     that, compared with the ledger
entries     entries of the ledger, and who signed them
revisions   a run: its revision, code, environment
recorded    what a run's revision holds, read from hashed objects
stages      what the run's stages read and wrote
engine      with which engine they ran
meanings    what that means: conversations, examples, a base model, weights, a decision
downwards   a version: who decided, and where its weights come from
holdings    what a run holds: conversations, examples, packages, hashes
traffic     the conversations of a run, from its snapshot
known       every run that can be asked about
upwards     from one of these to the runs and versions that rest on it
context     what all of these have at hand

    audit.ask(clone, audit.Question("icd10@champion"))
"""

from tasks.audit.asking import Question, ask, conversations

__all__ = ["Question", "ask", "conversations"]
