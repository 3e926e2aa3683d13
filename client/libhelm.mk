# libhelm as a library for other programs: shared, static, headers, pkg-config. Read by the Makefile.
#
# Staged as they are installed: $(LIB)/lib and $(LIB)/include. Only helm_* symbols leave either library.

LIB := $(if $(filter release,$(MODE)),$(BUILD),$(OBJ))
LIBHELM_HEADERS := chat.h err.h grammar.h helm.h tokenizer.h
LIBHELM_OBJ := $(call obj_of,$(LIBHELM_SRC) $(GEN)/proto/helm.pb-c.c)
LIBHELM_LIBS := -lzmq -lprotobuf-c -lpcre2-8 -ljansson -lutf8proc -lm
LIBHELM_SO := $(LIB)/lib/libhelm.so.$(VERSION)
LIBHELM_DEFS := -Wl,-z,defs
ifneq ($(filter asan ubsan tsan,$(MODE)),)
LIBHELM_DEFS := # the sanitizers' own functions come with the program
endif
lib: $(LIBHELM_SO) $(LIB)/lib/libhelm.a $(LIB)/lib/pkgconfig/libhelm.pc $(LIBHELM_HEADERS:%=$(LIB)/include/helm/%)

$(OBJ)/libhelm-common.a: $(call obj_of,$(COMMON_SRC))
	rm -f $@ && ar qcs $@ $^
$(LIBHELM_SO): $(LIBHELM_OBJ) $(OBJ)/libhelm-common.a client/libhelm.map
	@mkdir -p $(@D)
	$(CC) -shared -Wl,-soname,libhelm.so.0 -Wl,--version-script=client/libhelm.map $(LIBHELM_DEFS) \
	  -o $@ $(LIBHELM_OBJ) $(OBJ)/libhelm-common.a $(LDFLAGS_ALL) $(LIBHELM_LIBS)
	ln -sf $(@F) $(@D)/libhelm.so.0 && ln -sf libhelm.so.0 $(@D)/libhelm.so
$(LIB)/lib/libhelm.a: $(LIBHELM_OBJ) $(OBJ)/libhelm-common.a
	@mkdir -p $(@D)
	ld -r -o $(OBJ)/libhelm.o $^ && objcopy -w --keep-global-symbol='helm_[a-z]*' $(OBJ)/libhelm.o
	rm -f $@ && ar qcs $@ $(OBJ)/libhelm.o
$(LIB)/lib/pkgconfig/libhelm.pc: client/libhelm.pc.in VERSION
	@mkdir -p $(@D)
	sed 's,@VERSION@,$(VERSION),' $< > $@
# In the tree headers are found from its root, installed ones all in one folder, under helm/.
vpath %.h client client/text client/text/grammar client/text/tokenizer common/base
$(LIB)/include/helm/%.h: %.h
	@mkdir -p $(@D)
	sed -E 's,#include "(client|common)/([a-z-]+/)*,#include "helm/,' $< > $@
