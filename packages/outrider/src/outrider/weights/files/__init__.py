"""Files of tensors, under canonical names whatever the files were."""
