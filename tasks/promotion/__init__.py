"""Who is champion, and who decided it.

registration     a look at the test set, registered before the set is opened
counting         which look it is, and what it may spend of alpha
retiring         test sets that no later look can use
content          what a request is about, by hash, compared with the bytes
agents           any champion, or what a run's gate judged, laid out in a folder
smoke            a few examples that an agent plays right before its promotion
signing          the signature of its weights, in OpenSSF's format for models
preflight        these two, before a promotion's entry
sharing          bytes that the ledger counts on, where other clones can fetch them
elsewhere        runs of other clones that ask here, as an approver sees them
champions        the champion of a model, from the ledger
acts             request, approve, reject, lift, roll back
projections      what shows the champion elsewhere, kept in line with the ledger
targets          what is to be shown, and what is
mlflow_registry  MLflow's aliases
champion_file    `.rft/champion/MODEL.json`
"""
