"""What a sweep file says: its parts, its checks, its sizes and stages."""
