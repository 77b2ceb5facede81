"""What the verbs do with runs and networks, as calls: castle a run, convert a network, export, the demo."""
