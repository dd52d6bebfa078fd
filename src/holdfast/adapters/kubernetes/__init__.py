"""Kubernetes: its API server as an orchestrator. `objects` and `patches` are pure; `api` speaks, `looks` watches.

`client.KubernetesOrchestrator` fulfils `ports.Orchestrator` and is what `cli/` wires.
"""
