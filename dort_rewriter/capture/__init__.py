"""From Dynamo's graph to ATen graphs cut in partitions."""
