"""The reconfigurator: monitors the workload, plans instances for it, and carries out the plans."""
