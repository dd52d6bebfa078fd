"""From raw lines, exits and samples to findings: catalogue, matcher, Xid decoding, progress, stragglers.

Pure: bytes and times are handed in, findings come out. Adapters read the files.
"""
