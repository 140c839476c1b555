"""A viewer without a screen: it reads sources, keeps the state of a run, and yields frames."""
