"""Local mode writes the membership file that routers read."""

from __future__ import annotations

import json

from plumage.membership import Member, MemberState, pack_members, parse_members


def test_members_come_back_from_the_file() -> None:
    members = [
        Member(f"chat-{number}", f"http://127.0.0.1:{8101 + number}", f"http://127.0.0.1:{8201 + number}", state)
        for number, state in enumerate(MemberState)
    ]
    members.append(Member("chat-9", "http://[::1]:80"))
    content = pack_members("chat", members)
    assert parse_members(json.dumps(content).encode(), "chat") == members
    assert content["replicas"][0] == {
        "id": "chat-0", "url": "http://127.0.0.1:8101", "agent": "http://127.0.0.1:8201", "state": "Ready",
    }  # fmt: skip
