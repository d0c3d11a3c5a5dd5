/* A load generator that costs next to nothing.
 *
 *   load PORTS CONNECTIONS SECONDS RATE SEED FIRST BODIES SAMPLES
 *
 * PORTS: one, or several with commas between. Each gets CONNECTIONS, and RATE requests a second; several are sent to in
 * rounds, one request each, in an order drawn for every round, so that all of them meet the same machine.
 * BODIES holds one request body a prefix: u32 count, u32 base, then for each u32 size, u32 place, and the bytes; `place`
 * is where sixteen characters are replaced by the request's number, so that all text from there on is new. Prefixes are
 * drawn at random; the request id is "BASE+PREFIX-NUMBER". RATE 0: each connection sends its next request when it has the answer. RATE > 0: requests a second with
 * exponential gaps, over whichever connection is free; latency then counts from the moment a request was due.
 * FIRST: number of the first request. SAMPLES: a file for {u32 port's index, u32 round, u32 microseconds} of every
 * answer; "-": nowhere. Prints one line of JSON; latencies in microseconds.
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

enum { BUFFER = 1 << 16, EVENTS = 256, PLACE = 16, MOST_CONNECTIONS = 4096, MOST_QUEUED = 1 << 16, MOST_TARGETS = 4 };

struct body {
    uint32_t size, place;
    char *data;
};

struct due {
    double at;
    uint32_t round;
};

struct connection {
    int fd;
    size_t used;
    struct due due;
    struct target *target;
    char data[BUFFER];
};

struct target {
    struct sockaddr_in address;
    struct connection **idle;
    struct due queued[MOST_QUEUED];
    size_t room, resting, rested, head, tail; /* resting, rested: how many ever came to and left the ring of idle ones */
};

struct sample {
    uint32_t target, round, micros;
};

static struct body *bodies;
static uint32_t count, base;
static struct target targets[MOST_TARGETS];
static uint32_t target_count;
static uint64_t state, number, done, errors, refused;
static struct sample *samples;
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

static int connected(const struct target *target) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (connect(fd, (const struct sockaddr *)&target->address, sizeof target->address))
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void send_next(struct connection *c, struct due due) {
    char head[384], digits[PLACE + 1];
    uint32_t prefix = (uint32_t)(draw() % count);
    struct body *b = &bodies[prefix];
    snprintf(digits, sizeof digits, "%016llu", (unsigned long long)number);
    memcpy(b->data + b->place, digits, PLACE);
    int size = snprintf(head, sizeof head,
                        "POST /v1/chat/completions HTTP/1.1\r\nhost: load\r\ncontent-type: application/json\r\n"
                        "authorization: Bearer sk-load-0123456789abcdef0123456789abcdef\r\n"
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

static void note(const struct connection *c) {
    double micros = (now() - c->due.at) * 1e6;
    if (kept == room && !(samples = realloc(samples, (room = room ? room * 2 : 1 << 16) * sizeof *samples)))
        die("memory");
    samples[kept++] = (struct sample){(uint32_t)(c->target - targets), c->due.round,
                                      micros < 4e9 ? (uint32_t)micros : UINT32_MAX};
}

static void write_samples(const char *path) {
    if (!strcmp(path, "-"))
        return;
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(samples, sizeof *samples, kept, file) != kept || fclose(file))
        die(path);
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
    int counted = length && length < end;
    size_t body = counted ? strtoul(length + 15, NULL, 10) : 0;
    if (c->used < (size_t)(end + 4 - c->data) + body)
        return 0;
    if (!counted && strcasestr(c->data, "transfer-encoding: chunked") && memcmp(c->data + c->used - 7, "\r\n0\r\n\r\n", 7))
        return 0;
    if (strncmp(c->data + 9, "200", 3)) {
        if (!errors && !refused)
            fprintf(stderr, "%.*s\n", (int)c->used, c->data);
        refused++;
    }
    return 1;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = ((const struct sample *)a)->micros, y = ((const struct sample *)b)->micros;
    return (x > y) - (x < y);
}

static double quantile(double q) {
    return kept ? samples[(size_t)(q * (double)(kept - 1))].micros : 0;
}

static void watch(int epoll, int fd, struct connection *c) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        die("epoll_ctl");
}

static void set_timer(int timer, double at) {
    struct itimerspec when = {.it_value = {(time_t)at, (long)((at - floor(at)) * 1e9)}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL))
        die("timer");
}

static void read_targets(char *ports, int connections) {
    for (char *port = strtok(ports, ","); port && target_count < MOST_TARGETS; port = strtok(NULL, ",")) {
        struct target *target = &targets[target_count++];
        target->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
        target->address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        target->idle = calloc((size_t)connections, sizeof *target->idle);
        target->room = (size_t)connections;
    }
}

/* The round under way: one request for each target, in a drawn order, with exponential gaps. */
static uint32_t order[MOST_TARGETS], turn, rounds;
static double next;

static void advance(double rate) {
    next += -log(((double)(draw() >> 11) + 1) / 9007199254740993.0) / rate / target_count;
    turn = (turn + 1) % target_count;
    if (turn)
        return;
    rounds++;
    for (uint32_t i = 0; i < target_count; i++) {
        uint32_t j = (uint32_t)(draw() % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
}

/* Puts what is due by `time` on its target's queue. */
static void queue_due(double time, double rate) {
    for (; next <= time; advance(rate)) {
        struct target *target = &targets[order[turn]];
        if (target->tail - target->head < MOST_QUEUED)
            target->queued[target->tail++ % MOST_QUEUED] = (struct due){next, rounds};
    }
}

/* The connection that rested longest is next: one that is never used would be cut off. */
static void send_queued(struct target *target) {
    while (target->rested != target->resting && target->head != target->tail)
        send_next(target->idle[target->rested++ % target->room], target->queued[target->head++ % MOST_QUEUED]);
}

static void rest(struct connection *c) {
    c->target->idle[c->target->resting++ % c->target->room] = c;
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fprintf(stderr, "usage: load PORTS CONNECTIONS SECONDS RATE SEED FIRST BODIES SAMPLES\n");
        return 2;
    }
    int connections = atoi(argv[2]), epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    double seconds = atof(argv[3]), rate = atof(argv[4]);
    state = strtoull(argv[5], NULL, 10);
    number = strtoull(argv[6], NULL, 10);
    read_bodies(argv[7]);
    if (connections < 1 || connections > MOST_CONNECTIONS)
        return 2;
    read_targets(argv[1], connections);
    for (uint32_t i = 0; i < target_count; i++)
        order[i] = i;
    size_t whole_count = (size_t)connections * target_count;
    struct connection *all = calloc(whole_count, sizeof *all);
    double started = now(), end = started + seconds, last = started;
    next = started;
    for (size_t i = 0; i < whole_count; i++) {
        struct connection *c = &all[i];
        c->target = &targets[i % target_count];
        c->fd = connected(c->target);
        watch(epoll, c->fd, c);
        if (rate > 0)
            rest(c);
        else
            send_next(c, (struct due){now(), 0});
    }
    if (rate > 0) {
        watch(epoll, timer, NULL);
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
                queue_due(last, rate);
                set_timer(timer, next);
                continue;
            }
            int whole = receive(c);
            if (whole < 0) {
                errors++;
                close(c->fd);
                c->fd = connected(c->target);
                watch(epoll, c->fd, c);
            } else if (whole > 0) {
                note(c);
                done++;
            }
            if (whole && rate > 0)
                rest(c);
            else if (whole)
                send_next(c, (struct due){now(), 0});
        }
        for (uint32_t i = 0; i < target_count; i++)
            send_queued(&targets[i]);
    }
    double took = now() - started;
    write_samples(argv[8]);
    qsort(samples, kept, sizeof *samples, ascending);
    printf("{\"requests\":%llu,\"seconds\":%.6f,\"errors\":%llu,\"refused\":%llu,\"next\":%llu,\"p50\":%.0f,\"p90\":%.0f,"
           "\"p99\":%.0f,\"max\":%.0f}\n",
           (unsigned long long)done, took, (unsigned long long)errors, (unsigned long long)refused,
           (unsigned long long)number, quantile(0.5), quantile(0.9), quantile(0.99), quantile(1));
    return errors || refused ? 1 : 0;
}
