"""What a run or a sweep needs: FLOPs, memory, GPUs, time. The one place that counts."""
