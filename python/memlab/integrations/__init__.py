"""memlab in other frameworks: callbacks in `memlab.integrations.lightning` and `memlab.integrations.transformers`, a
`runtime_env` in `memlab.integrations.ray`."""
