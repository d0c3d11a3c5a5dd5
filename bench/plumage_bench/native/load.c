/* A load generator that costs next to nothing.
 *
 *   load PORT CONNECTIONS SECONDS RATE SEED FIRST BODIES
 *
 * BODIES holds one request body a prefix: u32 count, u32 base, then for each u32 size, u32 place, and the bytes; `place`
 * is where sixteen characters are replaced by the request's number, so that all text from there on is new. Prefixes are
 * drawn at random; the request id is "BASE+PREFIX-NUMBER". RATE 0: each connection sends its next request when it has the answer. RATE > 0: requests a second with
 * exponential gaps, over whichever connection is free; latency then counts from the moment a request was due.
 * FIRST: number of the first request. Prints one line of JSON; latencies in microseconds.
 * One thread, epoll.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 16, EVENTS = 256, PLACE = 16, MOST_CONNECTIONS = 4096, MOST_QUEUED = 1 << 16 };

struct body {
    uint32_t size, place;
    char *data;
};

struct connection {
    int fd;
    size_t used;
    double due;
    char data[BUFFER];
};

static struct body *bodies;
static uint32_t count, base;
static struct sockaddr_in address = {.sin_family = AF_INET};
static uint64_t state, number, done, errors, refused;
static uint32_t *latencies;
static size_t kept, room;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* splitmix64 */
static uint64_t draw(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

static void read_bodies(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fread(&count, 4, 1, file) != 1 || fread(&base, 4, 1, file) != 1)
        die(path);
    bodies = calloc(count, sizeof *bodies);
    for (uint32_t i = 0; i < count; i++) {
        struct body *b = &bodies[i];
        if (fread(&b->size, 4, 1, file) != 1 || fread(&b->place, 4, 1, file) != 1)
            die(path);
        b->data = malloc(b->size);
        if (fread(b->data, b->size, 1, file) != 1)
            die(path);
    }
    fclose(file);
}

static int connected(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void send_next(struct connection *c, double due) {
    char head[256], digits[PLACE + 1];
    uint32_t prefix = (uint32_t)(draw() % count);
    struct body *b = &bodies[prefix];
    snprintf(digits, sizeof digits, "%016llu", (unsigned long long)number);
    memcpy(b->data + b->place, digits, PLACE);
    int size = snprintf(head, sizeof head,
                        "POST /v1/chat/completions HTTP/1.1\r\nhost: load\r\ncontent-type: application/json\r\n"
                        "x-request-id: %u-%llu\r\ncontent-length: %u\r\n\r\n",
                        base + prefix, (unsigned long long)number, b->size);
    number++;
    c->due = due;
    c->used = 0;
    struct iovec parts[2] = {{head, (size_t)size}, {b->data, b->size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    size_t left = (size_t)size + b->size;
    ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
    if (sent != (ssize_t)left) /* blocking sockets: short only when broken */
        errors++;
}

static void note(double microseconds) {
    if (kept == room && !(latencies = realloc(latencies, (room = room ? room * 2 : 1 << 16) * sizeof *latencies)))
        die("memory");
    latencies[kept++] = microseconds < 4e9 ? (uint32_t)microseconds : UINT32_MAX;
}

/* 1: the answer is whole; 0: not yet; -1: the connection ended. */
static int receive(struct connection *c) {
    ssize_t got = recv(c->fd, c->data + c->used, BUFFER - 1 - c->used, MSG_DONTWAIT);
    if (got <= 0)
        return got < 0 && errno == EAGAIN ? 0 : -1;
    c->used += (size_t)got;
    c->data[c->used] = 0;
    char *end = memmem(c->data, c->used, "\r\n\r\n", 4);
    if (!end)
        return 0;
    char *length = strcasestr(c->data, "content-length:");
    size_t body = length && length < end ? strtoul(length + 15, NULL, 10) : 0;
    if (c->used < (size_t)(end + 4 - c->data) + body)
        return 0;
    if (strncmp(c->data + 9, "200", 3)) {
        if (!errors && !refused)
            fprintf(stderr, "%.*s\n", (int)c->used, c->data);
        refused++;
    }
    return 1;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double quantile(double q) {
    return kept ? latencies[(size_t)(q * (double)(kept - 1))] : 0;
}

static void set_timer(int timer, double at) {
    struct itimerspec when = {.it_value = {(time_t)at, (long)((at - floor(at)) * 1e9)}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL))
        die("timer");
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fprintf(stderr, "usage: load PORT CONNECTIONS SECONDS RATE SEED FIRST BODIES\n");
        return 2;
    }
    int connections = atoi(argv[2]), epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    double seconds = atof(argv[3]), rate = atof(argv[4]);
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    state = strtoull(argv[5], NULL, 10);
    number = strtoull(argv[6], NULL, 10);
    read_bodies(argv[7]);
    if (connections < 1 || connections > MOST_CONNECTIONS)
        return 2;
    struct connection *all = calloc((size_t)connections, sizeof *all), **idle = calloc((size_t)connections, sizeof *idle);
    static double queued[MOST_QUEUED];
    size_t head = 0, tail = 0, resting = 0;
    double started = now(), end = started + seconds, next = started, last = started;
    for (int i = 0; i < connections; i++) {
        all[i].fd = connected();
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &event);
        if (rate > 0)
            idle[resting++] = &all[i];
        else
            send_next(&all[i], now());
    }
    if (rate > 0) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event);
        set_timer(timer, next);
    }
    struct epoll_event events[EVENTS];
    while (last < end) {
        int ready = epoll_wait(epoll, events, EVENTS, 100);
        last = now();
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                uint64_t ticks;
                if (read(timer, &ticks, sizeof ticks) < 0)
                    die("timer");
                for (; next <= last; next += -log(((double)(draw() >> 11) + 1) / 9007199254740993.0) / rate)
                    if (tail - head < MOST_QUEUED)
                        queued[tail++ % MOST_QUEUED] = next;
                set_timer(timer, next);
                continue;
            }
            int whole = receive(c);
            if (whole < 0) {
                errors++;
                close(c->fd);
                c->fd = connected();
                struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
                epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
            } else if (whole > 0) {
                note((now() - c->due) * 1e6);
                done++;
            }
            if (whole && rate > 0)
                idle[resting++] = c;
            else if (whole)
                send_next(c, now());
        }
        while (resting && head != tail)
            send_next(idle[--resting], queued[head++ % MOST_QUEUED]);
    }
    double took = now() - started;
    qsort(latencies, kept, sizeof *latencies, ascending);
    printf("{\"requests\":%llu,\"seconds\":%.6f,\"errors\":%llu,\"refused\":%llu,\"next\":%llu,\"p50\":%.0f,\"p90\":%.0f,"
           "\"p99\":%.0f,\"max\":%.0f}\n",
           (unsigned long long)done, took, (unsigned long long)errors, (unsigned long long)refused,
           (unsigned long long)number, quantile(0.5), quantile(0.9), quantile(0.99), quantile(1));
    return errors || refused ? 1 : 0;
}
