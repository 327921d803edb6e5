"""One file a provider, the shared contract and HTTP. Knows only the wire."""
