"""What MLflow and Prefect show.

The modules:

    tracking      A run's settings, numbers and page, for MLflow.
    mlflow_store  MLflow's store, and the only code that sends a run's data there.
    datasets      What a run read and made, as MLflow's datasets: hashes and counts, no rows.
    comparisons   The drift of earlier runs, for pictures over time.
    traces        Rollouts as MLflow traces.
    flow_pages    A run's name, lines and result, in Prefect.
    markdown      A run, a stage and a promotion in words, for both.
"""
