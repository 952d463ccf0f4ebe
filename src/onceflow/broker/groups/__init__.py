"""Consumer groups: the classic protocol and the offsets that groups commit."""
