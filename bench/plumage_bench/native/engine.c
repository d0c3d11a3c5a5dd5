/* A mock engine that costs next to nothing, so that what is measured is the router.
 *
 *   engine PORT COUNT PREFIXES REPORT
 *
 * Listens on COUNT ports from PORT on, one a replica. Every POST gets the same small completion whose usage is
 * that of a cache that keeps every prefix: cached_tokens is the shared part's tokens once this replica has seen the
 * prefix, else 0. The prefix and the request's number come in the request id ("PREFIX-NUMBER", see load.c) and are
 * written as {u32 replica, u32 prefix, u64 number} to the file REPORT (a fifo: the mock's agents read it; "-": nowhere).
 * A body that ends with "stream":true} gets CHUNKS events, one every STEP_MS, so that each arrives by itself, as from an
 * engine's steps. The last one comes with the usage and the end.
 * One thread, epoll, level-triggered.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, EVENTS = 256, MOST_PREFIXES = 4096, MOST_REPLICAS = 64, TOKEN_BYTES = 4 };
enum { CHUNKS = 16, STEP_MS = 5, MOST_STREAMS = 4096 };

struct connection {
    int fd, replica, listening, left; /* left: events of the stream that it gets */
    uint32_t tokens, cached;
    size_t used;
    char *data;
};

struct report {
    uint32_t replica, prefix;
    uint64_t number;
};

static unsigned char seen[MOST_REPLICAS][MOST_PREFIXES];
static int report_fd = -1;
static uint32_t prefixes;
static struct connection *streams[MOST_STREAMS];
static int streaming, timer;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static const char *header(const char *head, const char *end, const char *name) {
    size_t length = strlen(name);
    for (const char *line = head; line < end;) {
        const char *next = memchr(line, '\n', (size_t)(end - line));
        if (!next)
            return NULL;
        if ((size_t)(next - line) > length && line[length] == ':' && !strncasecmp(line, name, length)) {
            line += length + 1;
            while (*line == ' ')
                line++;
            return line;
        }
        line = next + 1;
    }
    return NULL;
}

static int send_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return -1;
        if (sent > 0) {
            data += sent;
            size -= (size_t)sent;
        }
    }
    return 0;
}

/* The timer runs only while there are streams. */
static void set_timer(long milliseconds) {
    struct timespec time = {.tv_nsec = milliseconds * 1000000};
    struct itimerspec every = {.it_interval = time, .it_value = time};
    if (timerfd_settime(timer, 0, &every, NULL))
        die("timer");
}

static int begin_stream(struct connection *c, uint32_t tokens, uint32_t cached) {
    static const char head[] =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    if (streaming == MOST_STREAMS || c->left)
        return -1;
    c->left = CHUNKS;
    c->tokens = tokens;
    c->cached = cached;
    if (!streaming)
        set_timer(STEP_MS);
    streams[streaming++] = c;
    return send_all(c->fd, head, sizeof head - 1);
}

static void end_stream(struct connection *c) {
    for (int i = 0; i < streaming; i++)
        if (streams[i] == c) {
            streams[i] = streams[--streaming];
            return;
        }
}

/* Sends the next event; a client that left is noticed by its closed connection. */
static void send_event(struct connection *c) {
    static const char token[] = "data: {\"id\":\"m\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\","
                                "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ok \"},\"finish_reason\":null}]}\n\n";
    char reply[1024], last[512];
    int size = snprintf(reply, sizeof reply, "%zx\r\n%s\r\n", sizeof token - 1, token);
    if (!--c->left) {
        int more = snprintf(last, sizeof last,
                            "data: {\"id\":\"m\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],"
                            "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%d,\"total_tokens\":%u,"
                            "\"prompt_tokens_details\":{\"cached_tokens\":%u}}}\n\ndata: [DONE]\n\n",
                            c->tokens, CHUNKS, c->tokens + CHUNKS, c->cached);
        size += snprintf(reply + size, sizeof reply - (size_t)size, "%x\r\n%s\r\n0\r\n\r\n", more, last);
    }
    send_all(c->fd, reply, (size_t)size);
}

static void step(void) {
    for (int i = streaming - 1; i >= 0; i--) {
        send_event(streams[i]);
        if (!streams[i]->left)
            streams[i] = streams[--streaming];
    }
    if (!streaming)
        set_timer(0);
}

static int wants_stream(const char *end, size_t body) {
    static const char mark[] = "\"stream\":true}";
    return body >= sizeof mark - 1 && !memcmp(end + 4 + body - (sizeof mark - 1), mark, sizeof mark - 1);
}

static int answer(struct connection *c, const char *end, size_t body) {
    char text[512], reply[768];
    const char *id = header(c->data, end + 2, "x-request-id");
    uint32_t cached = 0;
    if (id) {
        char *dash;
        uint32_t prefix = (uint32_t)strtoul(id, &dash, 10) % prefixes;
        uint64_t number = strtoull(dash + 1, NULL, 10);
        unsigned char *known = &seen[c->replica][prefix];
        cached = *known ? (uint32_t)(body * 3 / 4 / TOKEN_BYTES) : 0;
        *known = 1;
        struct report report = {(uint32_t)c->replica, prefix, number};
        if (report_fd >= 0 && write(report_fd, &report, sizeof report) < 0 && errno != EAGAIN)
            die("report");
    }
    if (wants_stream(end, body))
        return begin_stream(c, (uint32_t)(body / TOKEN_BYTES), cached);
    int size = snprintf(text, sizeof text,
                        "{\"id\":\"m\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,"
                        "\"message\":{\"role\":\"assistant\",\"content\":\"ok\"},\"finish_reason\":\"stop\"}],\"usage\":{"
                        "\"prompt_tokens\":%zu,\"completion_tokens\":1,\"total_tokens\":%zu,\"prompt_tokens_details\":{"
                        "\"cached_tokens\":%u}}}",
                        body / TOKEN_BYTES, body / TOKEN_BYTES + 1, cached);
    int whole = snprintf(reply, sizeof reply,
                         "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", size, text);
    return send_all(c->fd, reply, (size_t)whole);
}

/* Answers every whole request in the buffer; -1 when the connection is to be closed. */
static int serve(struct connection *c) {
    for (;;) {
        c->data[c->used] = 0;
        char *end = memmem(c->data, c->used, "\r\n\r\n", 4);
        if (!end)
            return c->used < BUFFER - 1 ? 0 : -1;
        const char *length = header(c->data, end + 2, "content-length");
        size_t body = length ? strtoul(length, NULL, 10) : 0, whole = (size_t)(end + 4 - c->data) + body;
        if (whole >= BUFFER)
            return -1;
        if (c->used < whole)
            return 0;
        if (!strncmp(c->data, "GET /v1/models", 14)) { /* other routers ask which model a worker serves */
            static const char models[] =
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 87\r\n\r\n"
                "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\",\"created\":1,\"owned_by\":\"vllm\"}]}";
            if (send_all(c->fd, models, sizeof models - 1))
                return -1;
        } else if (!strncmp(c->data, "GET", 3)) {
            static const char healthy[] = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            if (send_all(c->fd, healthy, sizeof healthy - 1))
                return -1;
        } else if (answer(c, end, body)) {
            return -1;
        }
        memmove(c->data, c->data + whole, c->used - whole);
        c->used -= whole;
        if (!c->used)
            return 0;
    }
}

static void watch(int epoll, struct connection *c) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event))
        die("epoll_ctl");
}

static void listen_on(int epoll, int port, int replica) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1024))
        die("listen");
    struct connection *c = calloc(1, sizeof *c);
    *c = (struct connection){.fd = fd, .replica = replica, .listening = 1};
    watch(epoll, c);
}

static void accept_all(int epoll, struct connection *listener) {
    int fd, on = 1;
    while ((fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = calloc(1, sizeof *c);
        *c = (struct connection){.fd = fd, .replica = listener->replica, .data = malloc(BUFFER)};
        watch(epoll, c);
    }
}

static void read_from(struct connection *c) {
    ssize_t got = read(c->fd, c->data + c->used, BUFFER - 1 - c->used);
    if (got > 0)
        c->used += (size_t)got;
    if (got == 0 || (got < 0 && errno != EAGAIN) || (got > 0 && serve(c))) {
        end_stream(c);
        close(c->fd);
        free(c->data);
        free(c);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: engine PORT COUNT PREFIXES REPORT\n");
        return 2;
    }
    int port = atoi(argv[1]), count = atoi(argv[2]), epoll = epoll_create1(0);
    prefixes = (uint32_t)atoi(argv[3]);
    if (count < 1 || count > MOST_REPLICAS || prefixes < 1 || prefixes > MOST_PREFIXES)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(argv[4], "-") && (report_fd = open(argv[4], O_RDWR | O_NONBLOCK)) < 0)
        die("report");
    if (report_fd >= 0)
        fcntl(report_fd, F_SETPIPE_SZ, 1 << 20);
    for (int replica = 0; replica < count; replica++)
        listen_on(epoll, port + replica, replica);
    struct epoll_event tick = {.events = EPOLLIN, .data.ptr = NULL};
    if ((timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)) < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &tick))
        die("epoll_ctl");
    puts("ready");
    fflush(stdout);
    struct epoll_event events[EVENTS];
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                uint64_t ticks;
                if (read(timer, &ticks, sizeof ticks) > 0) /* else it was set again since */
                    step();
            } else if (c->listening)
                accept_all(epoll, c);
            else
                read_from(c);
        }
    }
}
