"""The pool's shared memory of who holds which prefix, how busy everyone is and what is hot: the only I/O in core.

    agent   DirectoryWriter ─ ledger, rolling ─▶ server ─ snapshot, follower ─▶ DirectorySync   router
                                                 schema                         └▶ Mirror ◀─ routing decisions
    router  WorkShare    ◀────── exchange ──────▶ server ◀────── exchange ──────▶ WorkShare      router
    anyone  HotnessShare ◀────── exchange ──────▶ server ◀────── exchange ──────▶ HotnessShare   anyone

`schema` says what lies in the server, `connection` which servers there are, `server` starts one for a single machine.
The server holds hashes, counts and measurements: no prompt text and no token id.
"""
