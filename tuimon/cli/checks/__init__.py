"""What `tuimon doctor` looks at: this host, this terminal, the runs. Looking changes nothing."""
