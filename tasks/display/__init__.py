"""What MLflow shows.

tracking   a run's settings, numbers and page
traces     rollouts as traces
"""
