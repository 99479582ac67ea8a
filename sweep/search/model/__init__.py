"""The cost model: tokens/s at batch b = b x accept length / step time, each half learnt with its uncertainty."""
