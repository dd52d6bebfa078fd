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
    ("--controller=http://", "--controller=http{{ if .Values.tls.secret }}s{{ end }}://"),
    (
        "httpGet: {path: /livez, port: api}",
        "httpGet: {path: /livez, port: api{{ if .Values.tls.secret }}, scheme: HTTPS{{ end }}}",
    ),
)
SERVES, TRUSTS = ".Values.tls.secret", ".Values.tls.ca"
BEHIND = (
    (
        "    mirror_incidents = true\n",
        SERVES,
        '\n    [tls]\n    cert = "/etc/holdfast-tls/tls.crt"\n    key = "/etc/holdfast-tls/tls.key"\n',
    ),
    (
        "            - {name: tokens, mountPath: /etc/holdfast-tokens, readOnly: true}\n",
        SERVES,
        "            - {name: tls, mountPath: /etc/holdfast-tls, readOnly: true}\n",
    ),
    (
        "          secret: {secretName: {{ .Values.tokens.secret }}, defaultMode: 0440}\n",
        SERVES,
        "        - name: tls\n          secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 0440}\n",
    ),
    (
        "            - --token-file=/var/run/secrets/holdfast/token\n",
        TRUSTS,
        "            - --ca-file=/var/run/secrets/holdfast/ca.crt\n",
    ),
    (
        "              - serviceAccountToken: {path: token, audience: holdfast, expirationSeconds: 3600}\n",
        TRUSTS,
        "              - configMap: {name: {{ .Values.tls.ca }}, items: [{key: ca.crt, path: ca.crt}]}\n",
    ),
)
"""Lines of a template that stand behind another where the value is set."""
WITHOUT = (("            - {name: HOLDFAST_PLAIN_HTTP, ", SERVES),)
"""Beginnings of lines that are left out where the value is set."""


def templates() -> dict[str, str]:
    """Name and text of each template."""
    return {name: _template((KUBERNETES / name).read_text(encoding="utf-8")) for name in FILES}


def _template(text: str) -> str:
    for word, value in WORDS:
        text = text.replace(word, value)
    for line, value, more in BEHIND:
        text = text.replace(line, f"{line}{_indent(more)}{{{{- if {value} }}}}\n{more}{_indent(more)}{{{{- end }}}}\n")
    for beginning, value in WITHOUT:
        line = re.compile(rf"^( *){re.escape(beginning.lstrip())}.*\n", re.MULTILINE)
        text = line.sub(lambda hit: f"{hit[1]}{{{{- if not {value} }}}}\n{hit[0]}{hit[1]}{{{{- end }}}}\n", text)  # noqa: B023 - used at once
    return text


def _indent(lines: str) -> str:
    first = lines.lstrip("\n")
    return first[: len(first) - len(first.lstrip())]


def filled(text: str, values: dict[str, Any], namespace: str) -> str:
    """The template with these values, as Helm would render it: it uses names of values and `if`, `if not` of one."""

    def value(name: str) -> str:
        if name == ".Release.Namespace":
            return namespace
        found: Any = values
        for key in name.removeprefix(".Values.").split("."):
            found = found[key]
        return str(found)

    def chosen(match: re.Match[str]) -> str:
        return match[3] if bool(value(match[2])) is not bool(match[1]) else ""

    trimmed = re.sub(r"\s*\{\{-", "{{", text)
    kept = re.sub(r"\{\{ if (not )?(\S+) \}\}(.*?)\{\{ end \}\}", chosen, trimmed, flags=re.DOTALL)
    return re.sub(r"\{\{ (\S+) \}\}", lambda match: value(match[1]), kept)


def main() -> None:
    """Write all of them."""
    for name, text in templates().items():
        (CHART / "templates" / name).write_text(text, encoding="utf-8")
    shutil.copy(KUBERNETES / "incident-crd.yaml", CHART / "crds" / "incident-crd.yaml")


if __name__ == "__main__":
    main()
