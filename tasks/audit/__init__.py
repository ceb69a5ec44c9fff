"""An audit: what does a served model rest on, and what rests on a conversation?

A hash names everything that a model came from. The ledger's entries form a chain, the request names
the run's revision, the revision's dvc.lock names every file, and a list names the files of each
folder. An audit follows these names, recomputes each hash and signature, and gives each link a
state (rft/reports/audit.py). A link that could not be checked is never shown as verified.

    asking      The questions, as people ask them. Start here.
    graph       Nodes and links. A check that raises gives its link a state.
    store       Bytes from Git and DVC's cache, hashed. What is missing is fetched by hash.
    lock        dvc.lock and dvc.yaml of a revision.
    shown       What MLflow and the champion's file show.
    aliases     Compares what they show with the ledger.
    entries     Entries of the ledger, and who signed them.
    revisions   A run: its revision, code, environment.
    recorded    What a run's revision holds, read from hashed objects.
    stages      What the run's stages read and wrote.
    engine      The engine with which the stages ran.
    meanings    What their outputs mean: conversations, examples, a base model, weights, a decision.
    downwards   A version: who decided, and where its weights come from.
    holdings    What a run holds: conversations, examples, packages, hashes.
    traffic     The conversations of a run, from its snapshot.
    known       Every run that one can ask about.
    upwards     From a conversation, an example or a hash to the runs and versions that rest on it.
    context     What all of these modules share during an audit.

    audit.ask(clone, audit.Question("icd10@champion"))
"""

from tasks.audit.asking import Question, ask, conversations

__all__ = ["Question", "ask", "conversations"]
