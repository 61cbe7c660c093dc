"""Callbacks for other people's trainers: `memlab.integrations.lightning` and `memlab.integrations.transformers`."""
