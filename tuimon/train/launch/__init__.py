"""From `tuimon run` to the script: this process, its children, and how it all ends."""
