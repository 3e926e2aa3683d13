/* helm-inspect's report of a GGUF file beside what HELM makes of it: its key/values, and the tensors of one
 * that HELM does not load. See inspect.h. */
#include <string.h>

#include "tools/inspect/inspect.h"

#define SHOWN_ELEMENTS 4
#define SHOWN_BYTES    60

/* A string as one line of printable ASCII, cut. */
static void print_string(const char *text, uint64_t length, FILE *out)
{
    fputc('"', out);
    for (uint64_t i = 0; i < length && i < SHOWN_BYTES; i++)
        fputc(text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '.', out);
    fprintf(out, length > SHOWN_BYTES ? "...\" (%llu bytes)" : "\"", (unsigned long long)length);
}

static void print_value(const struct gguf_value *value, FILE *out)
{
    const uint64_t shown = value->count < SHOWN_ELEMENTS ? value->count : SHOWN_ELEMENTS;
    const uint8_t *at = value->data;
    bool negative;
    for (uint64_t i = 0; i < shown; i++) {
        if (i) fprintf(out, ", ");
        if (value->type == GGUF_STRING) {
            uint64_t length;
            const char *text = gguf_string(&at, &length);
            print_string(text, length, out);
        } else if (value->type == GGUF_F32 || value->type == GGUF_F64) {
            fprintf(out, "%g", gguf_number(value, i));
        } else if (value->type == GGUF_BOOL) {
            fprintf(out, "%s", value->data[i] ? "true" : "false");
        } else {
            const uint64_t number = gguf_whole(value, i, &negative);
            fprintf(out, "%s%llu", negative ? "-" : "", (unsigned long long)(negative ? -number : number));
        }
    }
    fprintf(out, "%s\n", value->count > shown ? ", ..." : "");
}

void inspect_print_gguf(const struct gguf *header, bool tensors, FILE *out)
{
    char type[40];
    fprintf(out, "\n%-44s  %-16s  value\n", "key", "type");
    for (uint32_t i = 0; i < header->value_count; i++) {
        const struct gguf_value *value = &header->values[i];
        snprintf(type, sizeof type, "%s", gguf_type_name(value->type));
        if (value->array)
            snprintf(type, sizeof type, "%s[%llu]", gguf_type_name(value->type),
                     (unsigned long long)value->count);
        fprintf(out, "%-44s  %-16s  ", value->key, type);
        print_value(value, out);
    }
    if (!tensors) return;
    fprintf(out, "\n%-50s  %-24s  %-6s  %14s  %16s\n", "tensor", "shape", "type", "bytes", "offset");
    for (uint32_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        char shape[GGUF_RANK_MAX * 24];
        size_t used = 0;
        for (uint32_t d = 0; d < entry->rank; d++)
            used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%llu", d ? " x " : "",
                                     (unsigned long long)entry->shape[d]);
        fprintf(out, "%-50s  %-24s  %-6s  %14llu  %16llu\n", entry->name, shape, entry->dtype_text,
                (unsigned long long)entry->bytes, (unsigned long long)(header->data_offset + entry->begin));
    }
}

static json_t *element_json(const struct gguf_value *value, uint64_t index, const uint8_t **at)
{
    bool negative;
    uint64_t length;
    if (value->type == GGUF_STRING) {
        const char *text = gguf_string(at, &length);
        json_t *string = json_stringn(text, length);
        return string ? string : json_null(); /* bytes that are no text */
    }
    if (value->type == GGUF_BOOL) return json_boolean(value->data[index]);
    if (value->type == GGUF_F32 || value->type == GGUF_F64) {
        json_t *real = json_real(gguf_number(value, index));
        return real ? real : json_null(); /* NaN */
    }
    return json_integer((json_int_t)gguf_whole(value, index, &negative));
}

json_t *inspect_gguf_json(const struct gguf *header)
{
    json_t *root = json_object();
    for (uint32_t i = 0; i < header->value_count; i++) {
        const struct gguf_value *value = &header->values[i];
        const uint8_t *at = value->data;
        json_t *list = value->array ? json_array() : NULL;
        for (uint64_t k = 0; k < value->count && list; k++)
            json_array_append_new(list, element_json(value, k, &at));
        json_object_set_new(root, value->key, value->array ? list : element_json(value, 0, &at));
    }
    return root;
}
