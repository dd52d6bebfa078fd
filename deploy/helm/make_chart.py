"""Write the Helm chart's templates from deploy/kubernetes, so that the two cannot differ: python deploy/helm/make_chart.py.

A template is the manifest with some of its words replaced by values; `filled` puts a chart's values in their place, for
tests. The namespace is Helm's own to make, and the CRD goes to the chart's `crds`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KUBERNETES = HERE.parent / "kubernetes"
CHART = HERE / "holdfast"
FILES = ("rbac.yaml", "settings.yaml", "controller.yaml", "agent.yaml", "network-policy.yaml", "check-pod.yaml")
NAMESPACE = "{{ .Release.Namespace }}"
WORDS = (
    ("image: holdfast\n", 'image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"\n'),
    ("namespace: holdfast}", f'namespace: "{NAMESPACE}"}}'),
    ("namespace: holdfast\n", f'namespace: "{NAMESPACE}"\n'),
    ("http://holdfast.holdfast.svc:8470", f"http://holdfast.{NAMESPACE}.svc:8470"),
    ('agent_account = "holdfast/', f'agent_account = "{NAMESPACE}/'),
    ('check_template = "holdfast/', f'check_template = "{NAMESPACE}/'),
    ("replicas: 2 ", "replicas: {{ .Values.controller.replicas }} "),
    ("name: holdfast-journal,", "name: {{ .Values.journal.secret }},"),
    ("key: url}", "key: {{ .Values.journal.key }}}"),
    ("secretName: holdfast-tokens", "secretName: {{ .Values.tokens.secret }}"),
    ('nvidia.com/gpu.present: "true"', '{{ .Values.agent.node_label }}: "{{ .Values.agent.node_value }}"'),
    ('mode = "observe"', 'mode = "{{ .Values.mode }}"'),
)


def templates() -> dict[str, str]:
    """Name and text of each template."""
    return {name: _template((KUBERNETES / name).read_text(encoding="utf-8")) for name in FILES}


def _template(text: str) -> str:
    for word, value in WORDS:
        text = text.replace(word, value)
    return text


def filled(text: str, values: dict[str, Any], namespace: str) -> str:
    """The template with these values, as Helm would render it: it uses nothing but names of values."""

    def value(match: re.Match[str]) -> str:
        if match[1] == ".Release.Namespace":
            return namespace
        found: Any = values
        for key in match[1].removeprefix(".Values.").split("."):
            found = found[key]
        return str(found)

    return re.sub(r"\{\{ (\S+) \}\}", value, text)


def main() -> None:
    """Write all of them."""
    for name, text in templates().items():
        (CHART / "templates" / name).write_text(text, encoding="utf-8")
    shutil.copy(KUBERNETES / "incident-crd.yaml", CHART / "crds" / "incident-crd.yaml")


if __name__ == "__main__":
    main()
