"""The reconfigurator: for now its workload monitor."""
