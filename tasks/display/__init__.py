"""What MLflow and Prefect show.

tracking      a run's settings, numbers and page, for MLflow
mlflow_store  MLflow's store, and the only place where these go there
datasets      what it read and made, as MLflow's datasets: hashes and counts, no rows
comparisons   the drift of earlier runs, for pictures over time
traces        rollouts as MLflow traces
flow_pages    a run's name, lines and result, in Prefect
markdown      a run, a stage and a promotion in words, for both
"""
