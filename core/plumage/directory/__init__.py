"""The pool's directory: which replica caches which prefix, how busy each replica is, and which prefixes are hot.

    agent   DirectoryWriter ── HeldChunks, Outbox ──▶ server ── LogReader ──▶ DirectorySync ──▶ Mirror   router
    router  WorkShare    ◀────── SharedStream ──────▶ server ◀────── SharedStream ──────▶ WorkShare      router
    any     HotnessShare ◀────── SharedStream ──────▶ server ◀────── SharedStream ──────▶ HotnessShare   any

| package     | content                                                          |
|-------------|------------------------------------------------------------------|
| `schema`    | keys, packed forms, versions and lifetimes of the stored values  |
| `client`    | connections to the server, pipelines, back-off, background tasks |
| `publisher` | the agent's side: writes what one replica holds                  |
| `mirror`    | the router's side: reads all replicas into one table             |
| `sharing`   | what routers and agents share: work, learned state, hotness      |
| `server`    | starts the server: for local mode and in a pod                   |

The server stores hashes, counts and measurements. It stores no prompt text and no token id.
"""
