"""All input and output of Holdfast. Adapters fulfil `holdfast.ports` and do not know each other."""
