"""The contents of a sweep file: its parts, its checks, its sizes and stages."""
