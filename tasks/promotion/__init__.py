"""Which version is champion, and who decided it.

The modules:

    registration     A look at the test set, registered before the set is opened.
    counting         Counts the looks, and what a look may spend of alpha.
    retiring         Test sets that no later look can use.
    content          What a request is about, by hash, compared with the bytes.
    agents           Lays out any champion, or what a run's gate judged, in a folder.
    smoke            A few examples that an agent plays right before its promotion.
    signing          The signature of its weights, in OpenSSF's format for models.
    preflight        The smoke test and the signature, before a promotion's entry.
    sharing          Bytes that the ledger counts on, where other clones can fetch them.
    elsewhere        Runs of other clones that ask here, as an approver sees them.
    champions        The champion of a model, from the ledger.
    acts             Request, approve, reject, lift, roll back.
    projections      What shows the champion elsewhere, kept in line with the ledger.
    targets          What should be shown of a model, and what is shown.
    mlflow_registry  MLflow's aliases.
    champion_file    `.rft/champion/MODEL.json`.
"""
