"""One Prefect task per stage, a few lines each."""
