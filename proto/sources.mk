# Generated from the messages in proto/.

PROTO_SRC := $(GEN)/proto/helm.pb-c.c $(GEN)/proto/control.pb-c.c
