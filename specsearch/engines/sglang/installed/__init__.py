"""Which SGLang an interpreter has, and how its version differs from others."""
