# Sources and program of worker-cpu/.

WORKER_CPU_SRC := \
  worker-cpu/disk/disk.c \
  worker-cpu/disk/ring.c \
  worker-cpu/disk/turns.c \
  worker-cpu/engine.c \
  worker-cpu/local.c \
  worker-cpu/print.c \
  worker-cpu/program/activations.c \
  worker-cpu/program/assist.c \
  worker-cpu/program/attend.c \
  worker-cpu/program/cut.c \
  worker-cpu/program/delta.c \
  worker-cpu/program/execute.c \
  worker-cpu/program/experts.c \
  worker-cpu/program/linear.c \
  worker-cpu/program/print.c \
  worker-cpu/program/program.c \
  worker-cpu/program/read_ahead.c \
  worker-cpu/program/spans.c \
  worker-cpu/program/state.c \
  worker-cpu/program/tier.c \
  worker-cpu/step.c \
  worker-cpu/weights/weights.c

helm-worker-cpu_MAIN := worker-cpu/main.c
helm-worker-cpu_LINK := $(COMMON_SRC) $(MODEL_SRC) $(WORKER_SRC) $(WORKER_CPU_SRC) $(DISK_SRC) $(CPU_SRC) $(KERNEL_SRC) $(GEN)/proto/control.pb-c.c
helm-worker-cpu_LIBS := -lzmq -lprotobuf-c -lnuma -lopenblas -luring -ljansson -lm
