"""Output type to JSON Schema to provider dialect, and answers back to typed values."""
