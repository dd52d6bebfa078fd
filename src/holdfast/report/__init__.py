"""From the journal to numbers that an engineer and a manager both trust: timelines, figures, documents.

`gather` reads a journal or a controller; `timeline` and `figures` calculate (pure); `terminal`, `markdown`, `html` and
`json_form` show. Definitions and their sources stand once, in `definitions`.
"""
