-- Beside Prefect's database, which the image itself creates.
CREATE DATABASE mlflow;
