/* Finds ambiguous heads of requests. See framing.h. libmicrohttpd takes the first Content-Length, prefers chunks to any, and
 * keeps a blank before the colon as part of the name; texts end at NUL for it. */
#include "client/gateway/framing.h"

#include <string.h>
#include <strings.h>

struct head {
    unsigned lengths, encodings, hosts;
    const char *fault;
};

static bool is_token(const char *name, size_t length)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < length; i++) {
        const char c = name[i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && (!c || !strchr(marks, c))) return false;
    }
    return length > 0;
}

static bool is_length(const char *value, size_t length)
{
    return length > 0 && length < 19 && strspn(value, "0123456789") == length;
}

static enum MHD_Result look_at(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_length,
                               const char *value, size_t value_length)
{
    struct head *head = cls;
    (void)kind;
    if (!value) value = "";
    if (!is_token(name, name_length))
        head->fault = "a header's name holds a blank or another character that names do not have";
    else if (strlen(value) != value_length || strpbrk(value, "\r\n"))
        head->fault = "a header holds NUL or a line end";
    else if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0 && head->lengths++)
        head->fault = "Content-Length comes twice";
    else if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0 && !is_length(value, value_length))
        head->fault = "Content-Length is no number of bytes";
    else if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0 && head->encodings++)
        head->fault = "Transfer-Encoding comes twice";
    else if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0 && strcasecmp(value, "chunked") != 0)
        head->fault = "Transfer-Encoding is not 'chunked'";
    else if (strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0 && head->hosts++)
        head->fault = "Host comes twice";
    return head->fault ? MHD_NO : MHD_YES;
}

const char *framing_fault(struct MHD_Connection *connection, const char *version, bool has_nul)
{
    struct head head = {0};
    const bool is_1_0 = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    if (has_nul) return "the path or query holds NUL";
    if (!is_1_0 && strcmp(version, MHD_HTTP_VERSION_1_1) != 0)
        return "the request line does not end in HTTP/1.0 or HTTP/1.1";
    (void)MHD_get_connection_values_n(connection, MHD_HEADER_KIND, look_at, &head);
    if (head.fault) return head.fault;
    if (head.lengths && head.encodings) return "Content-Length and Transfer-Encoding come together";
    if (head.encodings && is_1_0) return "HTTP/1.0 has no Transfer-Encoding";
    return NULL;
}

bool framing_has_nul(const char *escaped)
{
    return strstr(escaped, "%00") != NULL;
}
