"""The paper's experiments, declared in TOML: runs, what is drawn from them, its own numbers."""
