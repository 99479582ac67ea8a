"""What a study hands on to other tools: serving commands and manifests, adaptive and acceptance files, Optuna files."""
