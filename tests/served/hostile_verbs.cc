// A program of verbs that uses libpollcore-verbs.so as wrongly as it can. It knows only libibverbs. What it does to
// itself is its own matter, so most attacks are made by children, round by round, and a child may crash. What matters
// is that nobody else notices.
//
//   hostile-verbs ATTACK MILLISECONDS
//
// runs rounds until the time is over, and then prints "done" and how many rounds there were. If what must work did not
// work, it prints a line that begins with "failed".
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <infiniband/verbs.h>

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point g_end;
thread_local std::mt19937_64 g_random;

bool over() {
    return Clock::now() >= g_end;
}
std::uint64_t pick(std::uint64_t count) {
    return g_random() % count;
}
constexpr unsigned kPatienceSeconds = 60;
constexpr int kFailed = 3;  // an exit code that the sanitizers do not use
[[noreturn]] void fail(const char* what) {
    std::printf("failed: %s (%s)\n", what, std::strerror(errno));
    std::fflush(stdout);
    ::_exit(kFailed);
}

// ---- the objects of a round ----

constexpr std::size_t kBytes = 64 * 1024;
constexpr std::uint32_t kDepth = 64;

struct Objects {
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_cq* cq = nullptr;
    ibv_srq* srq = nullptr;
    ibv_mr* mr = nullptr;
    ibv_ah* ah = nullptr;
    ibv_qp* a = nullptr;  // a and b are connected
    ibv_qp* b = nullptr;
    ibv_qp* datagrams = nullptr;
    char* memory = nullptr;
    ibv_gid gid{};
};

ibv_context* open_device() {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    ibv_context* const context = list == nullptr || count == 0 ? nullptr : ibv_open_device(list[0]);
    if (list != nullptr) {
        ibv_free_device_list(list);
    }
    return context;
}

ibv_qp* make_qp(const Objects& all, ibv_qp_type type, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = all.cq;
    init.srq = srq;
    init.cap = {
        .max_send_wr = kDepth, .max_recv_wr = kDepth, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64};
    init.qp_type = type;
    return ibv_create_qp(all.pd, &init);
}

int advance(const Objects& all, ibv_qp* qp, std::uint32_t peer) {
    const bool is_ud = qp->qp_type == IBV_QPT_UD;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = all.gid;
    attr.ah_attr.grh.hop_limit = 64;
    int error = ibv_modify_qp(
        qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    error |= ibv_modify_qp(qp, &attr,
                           is_ud ? int{IBV_QP_STATE}
                                 : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr.qp_state = IBV_QPS_RTS;
    error |= ibv_modify_qp(qp, &attr,
                           is_ud ? IBV_QP_STATE | IBV_QP_SQ_PSN
                                 : IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_MAX_QP_RD_ATOMIC);
    return error;
}

ibv_mr* register_all(const Objects& all) {
    return ibv_reg_mr(
        all.pd, all.memory, kBytes,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
}

// Whole pages of its own, because registered pages move on a software device.
char* pages(std::size_t bytes) {
    void* const all = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return all == MAP_FAILED ? nullptr : static_cast<char*>(all);
}

Objects make() {
    Objects all;
    all.context = open_device();
    if (all.context == nullptr) {
        fail("there is no device");
    }
    all.pd = ibv_alloc_pd(all.context);
    all.cq = ibv_create_cq(all.context, 4 * kDepth, nullptr, nullptr, 0);
    all.memory = pages(kBytes);
    if (all.pd == nullptr || all.cq == nullptr || ibv_query_gid(all.context, 1, 0, &all.gid) != 0 ||
        (all.mr = register_all(all)) == nullptr) {
        fail("the first objects cannot be made");
    }
    ibv_srq_init_attr srq{};
    srq.attr = {.max_wr = kDepth, .max_sge = 1, .srq_limit = 0};
    all.srq = ibv_create_srq(all.pd, &srq);
    all.a = make_qp(all, IBV_QPT_RC);
    all.b = make_qp(all, IBV_QPT_RC);
    all.datagrams = make_qp(all, IBV_QPT_UD, all.srq);
    ibv_ah_attr way{};
    way.is_global = 1;
    way.grh.dgid = all.gid;
    way.port_num = 1;
    all.ah = ibv_create_ah(all.pd, &way);
    if (all.srq == nullptr || all.a == nullptr || all.b == nullptr || all.datagrams == nullptr || all.ah == nullptr ||
        advance(all, all.a, all.b->qp_num) != 0 || advance(all, all.b, all.a->qp_num) != 0 ||
        advance(all, all.datagrams, 0) != 0) {
        fail("the objects cannot be made");
    }
    return all;
}

// ---- calls ----

int send(const Objects& all, ibv_qp* qp, std::size_t offset, std::uint32_t bytes, ibv_wr_opcode opcode = IBV_WR_SEND) {
    ibv_sge list{reinterpret_cast<std::uintptr_t>(all.memory + offset), bytes, all.mr->lkey};
    ibv_send_wr wr{};
    wr.wr_id = g_random();
    wr.sg_list = &list;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (qp == all.datagrams) {
        wr.wr.ud = {.ah = all.ah, .remote_qpn = all.datagrams->qp_num, .remote_qkey = 1};
    } else {
        wr.wr.rdma = {.remote_addr = reinterpret_cast<std::uintptr_t>(all.memory + kBytes / 2), .rkey = all.mr->rkey};
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
}

int receive(const Objects& all, ibv_qp* qp, std::size_t offset, std::uint32_t bytes) {
    ibv_sge list{reinterpret_cast<std::uintptr_t>(all.memory + offset), bytes, all.mr->lkey};
    ibv_recv_wr wr{.wr_id = g_random(), .next = nullptr, .sg_list = &list, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
}

int receive_shared(const Objects& all) {
    ibv_sge list{reinterpret_cast<std::uintptr_t>(all.memory), 256, all.mr->lkey};
    ibv_recv_wr wr{.wr_id = g_random(), .next = nullptr, .sg_list = &list, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(all.srq, &wr, &bad);
}

int poll(ibv_cq* cq) {
    ibv_wc wc[16];
    return ibv_poll_cq(cq, 16, wc);
}

void traffic(const Objects& all, int turns) {
    for (int i = 0; i < turns; ++i) {
        (void)receive(all, all.b, 1024, 64);
        (void)send(all, all.a, 0, 64, pick(2) == 0 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE);
        (void)receive_shared(all);
        (void)send(all, all.datagrams, 0, 64);
        (void)poll(all.cq);
    }
}

void end(Objects& all) {
    (void)ibv_destroy_qp(all.a);
    (void)ibv_destroy_qp(all.b);
    (void)ibv_destroy_qp(all.datagrams);
    (void)ibv_destroy_srq(all.srq);
    (void)ibv_destroy_ah(all.ah);
    (void)ibv_dereg_mr(all.mr);
    (void)ibv_destroy_cq(all.cq);
    (void)ibv_dealloc_pd(all.pd);
}

// ---- attacks, each of which is a round of a child ----

void use_freed_objects() {
    Objects all = make();
    traffic(all, 20);
    switch (pick(9)) {
        case 0:
            (void)ibv_destroy_qp(all.a);
            for (int i = 0; i < 200; ++i) {
                (void)send(all, all.a, 0, 64);
                (void)receive(all, all.a, 0, 64);
                (void)poll(all.cq);
            }
            (void)advance(all, all.a, all.b->qp_num);
            (void)ibv_destroy_qp(all.a);
            break;
        case 1: {
            ibv_cq* const cq = all.cq;
            end(all);
            for (int i = 0; i < 200; ++i) {
                (void)poll(cq);
                (void)ibv_req_notify_cq(cq, 0);
            }
            (void)ibv_resize_cq(cq, 100);
            (void)ibv_destroy_cq(cq);
            break;
        }
        case 2: {
            ibv_mr before = *all.mr;
            (void)ibv_dereg_mr(all.mr);
            all.mr = &before;
            traffic(all, 100);
            (void)::munmap(all.memory, kBytes);
            traffic(all, 100);
            (void)ibv_dereg_mr(&before);
            break;
        }
        case 3:
            (void)ibv_close_device(all.context);
            traffic(all, 100);
            (void)make_qp(all, IBV_QPT_RC);
            end(all);
            break;
        case 4: {
            ibv_pd* const pd = all.pd;
            end(all);
            (void)ibv_reg_mr(pd, all.memory, kBytes, 0);
            (void)ibv_alloc_pd(all.context);
            (void)ibv_dealloc_pd(pd);
            break;
        }
        case 5:
            (void)ibv_destroy_ah(all.ah);
            traffic(all, 100);
            (void)ibv_destroy_srq(all.srq);
            (void)ibv_destroy_qp(all.datagrams);
            (void)ibv_destroy_srq(all.srq);
            (void)receive_shared(all);
            break;
        case 6:
            std::free(all.b);
            std::free(all.cq);
            traffic(all, 100);
            break;
        case 7:
            std::memset(static_cast<void*>(all.a), static_cast<int>(g_random()), sizeof *all.a);
            traffic(all, 100);
            (void)ibv_destroy_qp(all.a);
            break;
        default: {
            // Other threads post and poll meanwhile.
            std::vector<std::thread> threads;
            for (int i = 0; i < 2; ++i) {
                threads.emplace_back([copy = all] { traffic(copy, 300); });
            }
            end(all);
            for (std::thread& thread : threads) {
                thread.join();
            }
        }
    }
}

// The timer or a second thread ends the process in the middle of a call.
void exit_in_a_call() {
    Objects all = make();
    const auto moment = 30 + pick(2500);
    if (pick(2) == 0) {
        struct sigaction action {};
        action.sa_handler = [](int) { ::_exit(0); };
        (void)::sigaction(SIGALRM, &action, nullptr);
        const itimerval once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = static_cast<suseconds_t>(moment)}};
        (void)::setitimer(ITIMER_REAL, &once, nullptr);
    } else {
        std::thread([moment] {
            std::this_thread::sleep_for(std::chrono::microseconds(moment));
            if (moment % 3 == 0) {
                ::kill(::getpid(), SIGKILL);
            }
            std::_Exit(0);
        }).detach();
    }
    for (const auto kind = pick(10);;) {
        switch (kind) {
            case 0: traffic(all, 1); break;
            case 1: (void)ibv_destroy_qp(make_qp(all, pick(2) == 0 ? IBV_QPT_RC : IBV_QPT_UD)); break;
            case 2: (void)ibv_dereg_mr(ibv_reg_mr(all.pd, pages(kBytes), kBytes, IBV_ACCESS_LOCAL_WRITE)); break;
            case 3: (void)ibv_destroy_cq(ibv_create_cq(all.context, 100, nullptr, nullptr, 0)); break;
            case 4: {
                ibv_qp_attr attr{};
                attr.qp_state = IBV_QPS_RESET;
                traffic(all, 4);
                (void)ibv_modify_qp(all.a, &attr, IBV_QP_STATE);
                (void)advance(all, all.a, all.b->qp_num);
                break;
            }
            case 5: {
                ibv_qp_attr attr{};
                ibv_qp_init_attr init{};
                (void)ibv_query_qp(all.a, &attr, -1, &init);
                break;
            }
            case 6: {
                Objects more = make();
                traffic(more, 4);
                end(more);
                break;
            }
            case 7: {
                ibv_device_attr device{};
                (void)ibv_query_device(all.context, &device);
                break;
            }
            case 8: {
                ibv_context* const other = open_device();
                (void)ibv_close_device(other);
                break;
            }
            default: {
                ibv_srq_attr attr{};
                attr.srq_limit = static_cast<std::uint32_t>(pick(kDepth));
                (void)receive_shared(all);
                (void)ibv_modify_srq(all.srq, &attr, IBV_SRQ_LIMIT);
            }
        }
    }
}

void close_all_descriptors() {
    Objects all = make();
    traffic(all, 20);
    (void)::close_range(3, ~0U, 0);
    traffic(all, 200);
    (void)make_qp(all, IBV_QPT_RC);
    (void)register_all(all);
    // Others take the numbers.
    for (int i = 0; i < 20; ++i) {
        (void)::open("/dev/null", O_RDWR);
    }
    traffic(all, 200);
    end(all);
}

struct Mapping {
    char* begin = nullptr;
    std::size_t bytes = 0;
};

// What the library shares with the daemon: memory whose name has `name` in it.
std::vector<Mapping> shared_mappings(const char* name) {
    std::vector<Mapping> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        if (line.find(std::string("memfd:pollcore") + name) != std::string::npos &&
            std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2) {
            found.push_back({reinterpret_cast<char*>(begin), end - begin});
        }
    }
    if (found.empty()) {
        fail("the library has no such memory");
    }
    return found;
}

void unmap_what_is_shared() {
    Objects all = make();
    traffic(all, 20);
    const auto way = pick(3);
    for (const Mapping& one : shared_mappings(pick(2) == 0 ? "" : " rings")) {
        if (way == 0) {
            (void)::munmap(one.begin, one.bytes);
        } else {
            (void)::mmap(one.begin, one.bytes, way == 1 ? PROT_READ | PROT_WRITE : PROT_READ,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        }
    }
    traffic(all, 200);
    end(all);
}

// Writes anywhere into the rings, while it posts and polls.
void garble_rings() {
    Objects all = make();
    traffic(all, 20);
    const std::vector<Mapping> rings = shared_mappings(" rings");
    const auto until = Clock::now() + std::chrono::milliseconds(50);
    for (const auto way = pick(4); Clock::now() < until;) {
        const Mapping& one = rings[pick(rings.size())];
        for (int i = 0; i < 256; ++i) {
            char* const at = one.begin + pick(one.bytes / 8) * 8;
            std::uint64_t word = 0;
            std::memcpy(&word, at, sizeof word);
            word = way == 0 ? g_random() : way == 1 ? ~word : way == 2 ? word + pick(16) : pick(4096);
            std::memcpy(at, &word, sizeof word);
        }
        traffic(all, 1);
    }
    end(all);
}

void exhaust_objects() {
    Objects all = make();
    constexpr int kMost = 3000;
    const auto until_refused = [](const std::function<bool()>& one) {
        for (int i = 0; i < kMost && !over() && one(); ++i) {
        }
    };
    switch (pick(6)) {
        case 0: until_refused([&] { return make_qp(all, IBV_QPT_RC) != nullptr; }); break;
        case 1:
            until_refused([&] {
                Objects more = all;
                more.cq = ibv_create_cq(all.context, 100, nullptr, nullptr, 0);
                return more.cq != nullptr && make_qp(more, IBV_QPT_RC) != nullptr;
            });
            break;
        case 2:
            until_refused([&] { return ibv_reg_mr(all.pd, pages(4096), 4096, IBV_ACCESS_LOCAL_WRITE) != nullptr; });
            break;
        case 3: until_refused([&] { return ibv_alloc_pd(all.context) != nullptr; }); break;
        case 4:
            until_refused([&] {
                ibv_ah_attr way{};
                way.is_global = 1;
                way.grh.dgid = all.gid;
                way.port_num = 1;
                return ibv_create_ah(all.pd, &way) != nullptr;
            });
            break;
        default:
            until_refused([&] {
                Objects more = all;
                ibv_srq_init_attr srq{};
                srq.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
                more.srq = ibv_create_srq(all.pd, &srq);
                return more.srq != nullptr && make_qp(more, IBV_QPT_UD, more.srq) != nullptr;
            });
    }
    traffic(all, 50);
    ::_exit(0);  // with all of them
}

// Any end, with requests in flight.
void end_somehow() {
    Objects all = make();
    for (std::uint32_t i = 0; i < kDepth; ++i) {
        (void)send(all, all.a, 0, 64);  // waits for a receive
        (void)receive(all, all.a, 0, 64);
    }
    const auto finish = [](std::uint64_t way) {
        switch (way) {
            case 0: std::exit(0);
            case 1: ::_exit(0);
            case 2: std::abort();
            case 3: ::raise(SIGKILL); break;
            case 4: ::raise(SIGSEGV); break;
            case 5: std::quick_exit(0);
            case 6: (void)::execl("/bin/true", "true", nullptr); break;
            default: (void)::execl("/proc/self/exe", "hostile-verbs", "end-at-once", "1", nullptr); break;
        }
    };
    const auto way = pick(8);
    if (pick(2) == 0) {
        std::thread([&finish, way] { finish(way); }).join();
    }
    finish(way);
}

void unload_the_library() {
    Objects all = make();
    std::istringstream preloaded(std::getenv("LD_PRELOAD") == nullptr ? "" : std::getenv("LD_PRELOAD"));
    traffic(all, 20);
    for (std::string name; preloaded >> name;) {
        for (const std::string& library : {name, std::string("libibverbs.so.1")}) {
            void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
            for (int i = 0; i < 10 && handle != nullptr; ++i) {
                (void)::dlclose(handle);
            }
        }
    }
    traffic(all, 20);
    end(all);
}

// Requests with random keys, addresses, lengths and destinations.
struct Wild {
    ibv_sge lists[2]{};
    ibv_send_wr send{};
    ibv_recv_wr receive{};
};

void make_wild(const Objects& all, ibv_qp* qp, Wild& wild) {
    for (ibv_sge& list : wild.lists) {
        list = {.addr = pick(2) == 0 ? g_random() : reinterpret_cast<std::uintptr_t>(all.memory) + pick(kBytes),
                .length = static_cast<std::uint32_t>(pick(2) == 0 ? g_random() : pick(256)),
                .lkey = pick(2) == 0 ? static_cast<std::uint32_t>(pick(4096)) : all.mr->lkey};
    }
    ibv_send_wr& wr = wild.send;
    wr.wr_id = g_random();
    wr.sg_list = wild.lists;
    wr.num_sge = static_cast<int>(pick(3));
    wr.opcode = static_cast<ibv_wr_opcode>(pick(12));
    wr.send_flags = static_cast<unsigned>(g_random()) & ~unsigned{IBV_SEND_INLINE};
    if (qp == all.datagrams) {
        // Numbers of others' queue pairs, too.
        wr.wr.ud = {.ah = all.ah,
                    .remote_qpn = static_cast<std::uint32_t>(pick(2) == 0 ? pick(1024) : g_random()),
                    .remote_qkey = static_cast<std::uint32_t>(pick(2) == 0 ? g_random() : pick(4))};
    } else {
        wr.wr.atomic = {.remote_addr = pick(2) == 0 ? g_random() : wild.lists[0].addr,
                        .compare_add = g_random(),
                        .swap = g_random(),
                        .rkey = pick(2) == 0 ? static_cast<std::uint32_t>(pick(4096)) : all.mr->rkey};
    }
    wild.receive = {.wr_id = 1, .next = nullptr, .sg_list = wild.lists, .num_sge = static_cast<int>(pick(3))};
}

// Makes chains of up to 40 of them. Some have no end.
void make_wild_chains(const Objects& all, ibv_qp* qp, std::vector<Wild>& chain) {
    const std::size_t length = pick(4) == 0 ? 1 + pick(chain.size()) : 1;
    for (std::size_t i = 0; i < length; ++i) {
        make_wild(all, qp, chain[i]);
        if (i > 0) {
            chain[i - 1].send.next = &chain[i].send;
            chain[i - 1].receive.next = &chain[i].receive;
        }
    }
    Wild& last = chain[length - 1];
    const bool endless = length > 1 && pick(8) == 0;
    last.send.next = endless ? &chain[pick(length)].send : nullptr;
    last.receive.next = endless ? &chain[pick(length)].receive : nullptr;
}

void post_wild_requests() {
    Objects all = make();
    std::vector<Wild> chain(40);
    // Another thread changes requests while they are posted.
    std::atomic<bool> shakes{true};
    std::thread shaker([&, seed = g_random()] {
        g_random.seed(seed);
        while (shakes.load(std::memory_order_relaxed)) {
            Wild& one = chain[pick(chain.size())];
            one.send.num_sge = static_cast<int>(pick(3));
            one.receive.num_sge = static_cast<int>(pick(3));
            one.send.opcode = static_cast<ibv_wr_opcode>(pick(12));
            std::this_thread::yield();
        }
    });
    for (int i = 0; i < 500; ++i) {
        ibv_qp* const qp = pick(3) == 0 ? all.datagrams : pick(2) == 0 ? all.a : all.b;
        make_wild_chains(all, qp, chain);
        ibv_send_wr* bad = nullptr;
        (void)ibv_post_send(qp, &chain[0].send, &bad);
        ibv_recv_wr* bad_receive = nullptr;
        (void)ibv_post_recv(qp, &chain[0].receive, &bad_receive);
        (void)poll(all.cq);
        if (pick(50) == 0) {
            // A guess at another process's queue pair as the peer.
            ibv_qp_attr attr{};
            attr.qp_state = IBV_QPS_RESET;
            (void)ibv_modify_qp(qp, &attr, IBV_QP_STATE);
            (void)advance(all, qp, static_cast<std::uint32_t>(pick(1024)));
        }
    }
    shakes.store(false, std::memory_order_relaxed);
    shaker.join();
    end(all);
}

// Threads that know nothing of each other use the same objects. With `ends` they also end them.
void run_threads(const Objects& all, bool ends) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([all, ends, seed = g_random()] {
            g_random.seed(seed);
            for (int turn = 0; turn < 150; ++turn) {
                switch (pick(6)) {
                    case 0: (void)ibv_destroy_qp(make_qp(all, IBV_QPT_RC)); break;
                    case 1: (void)advance(all, all.a, all.b->qp_num); break;
                    case 2: {
                        ibv_qp_attr attr{};
                        attr.qp_state = pick(2) == 0 ? IBV_QPS_RESET : IBV_QPS_ERR;
                        (void)ibv_modify_qp(all.a, &attr, IBV_QP_STATE);
                        break;
                    }
                    default: traffic(all, 3);
                }
                if (ends && turn == 100 && pick(4) == 0) {
                    Objects mine = all;
                    end(mine);
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

void race_with_itself() {
    run_threads(make(), true);
}

// All of that is allowed, so nothing may crash.
void use_threads() {
    Objects all = make();
    run_threads(all, false);
    end(all);
}

// Channels whose events nobody takes or acknowledges, or whose descriptors are closed.
void misuse_events() {
    Objects all = make();
    ibv_comp_channel* const channel = ibv_create_comp_channel(all.context);
    ibv_cq* const with_events = ibv_create_cq(all.context, 4 * kDepth, nullptr, channel, 0);
    std::swap(all.cq, *const_cast<ibv_cq**>(&with_events));
    ibv_qp* const a = make_qp(all, IBV_QPT_RC);
    ibv_qp* const b = make_qp(all, IBV_QPT_RC);
    if (channel == nullptr || a == nullptr || b == nullptr || advance(all, a, b->qp_num) != 0 ||
        advance(all, b, a->qp_num) != 0) {
        fail("the queue pairs with events cannot be made");
    }
    const auto way = pick(4);
    for (int i = 0; i < 100; ++i) {
        (void)ibv_req_notify_cq(all.cq, 0);
        (void)receive(all, b, 0, 64);
        (void)send(all, a, 0, 64);
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        if (way == 1) {
            (void)ibv_get_cq_event(channel, &cq, &context);  // and never acknowledges
        }
        if (way == 2 && i == 50) {
            (void)::close(channel->fd);
            (void)::close(all.context->async_fd);
        }
        (void)poll(all.cq);
    }
    if (way == 3) {
        (void)ibv_destroy_comp_channel(channel);
        (void)ibv_close_device(all.context);
    }
    ::_exit(0);
}

// ---- children of fork(2) that use what their parent has made ----

void use_what_the_parent_made(Objects all) {
    for (int i = 0; i < 50; ++i) {
        (void)send(all, all.a, 0, 64);
        (void)receive(all, all.b, kBytes / 2, 64);
        (void)poll(all.cq);
        (void)ibv_req_notify_cq(all.cq, 0);
    }
    switch (pick(5)) {
        case 0: end(all); break;
        case 1: (void)ibv_close_device(all.context); break;
        case 2: (void)make_qp(all, IBV_QPT_RC); break;
        case 3: (void)ibv_reg_mr(all.pd, all.memory, 4096, 0); break;
        default: {
            Objects own = make();  // a process of its own
            traffic(own, 5);
        }
    }
    pick(2) == 0 ? std::exit(0) : ::_exit(0);
}

// The parent sends itself messages all the time, and checks them. The children end in any way.
void fork_children(bool init) {
    if (init && ibv_fork_init() != 0) {
        fail("ibv_fork_init()");
    }
    const Objects all = make();
    std::uint64_t messages = 0;
    int children = 0;
    while (!over()) {
        for (int i = 0; i < 20; ++i, ++messages) {
            std::memset(all.memory, static_cast<int>(messages), 64);
            if (receive(all, all.b, 1024, 64) != 0 || send(all, all.a, 0, 64) != 0) {
                fail("a request of the parent was refused");
            }
            const auto until = Clock::now() + std::chrono::seconds(30);
            for (int ended = 0; ended < 2;) {
                ibv_wc wc{};
                const int got = ibv_poll_cq(all.cq, 1, &wc);
                if (got < 0 || (got == 1 && wc.status != IBV_WC_SUCCESS) || Clock::now() > until) {
                    fail("a message of the parent was lost");
                }
                ended += got;
            }
            if (std::memcmp(all.memory, all.memory + 1024, 64) != 0) {
                fail("a message of the parent is not what was sent");
            }
        }
        const pid_t child = ::fork();
        if (child == 0) {
            (void)::alarm(10);
            g_random.seed(static_cast<std::uint64_t>(::getpid()));
            use_what_the_parent_made(all);
        }
        ++children;
        while (::waitpid(-1, nullptr, children % 4 == 0 ? 0 : WNOHANG) > 0) {
        }
    }
    while (::wait(nullptr) > 0) {
    }
    std::printf("done: %d children, %llu messages\n", children, static_cast<unsigned long long>(messages));
}

// ---- rounds ----

// With `survives` the function is no attack: no child may fail, and one that takes long is only slow.
void run_in_children(void (*attack)(), bool survives) {
    int rounds = 0;
    int crashed = 0;
    int hung = 0;
    for (; rounds == 0 || !over(); ++rounds) {
        const pid_t child = ::fork();
        if (child == 0) {
            (void)::alarm(survives ? kPatienceSeconds : 3);  // ends a child that hangs
            g_random.seed(g_random() + static_cast<std::uint64_t>(::getpid()));
            attack();
            ::_exit(0);
        }
        int status = 0;
        if (child < 0 || ::waitpid(child, &status, 0) != child) {
            fail("a child cannot be started");
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) == kFailed) {
            ::_exit(kFailed);  // told
        }
        if (survives && status != 0) {
            std::printf("failed: a child that did nothing wrong, with the wait status %d\n", status);
            std::fflush(stdout);
            ::_exit(kFailed);
        }
        hung += WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
        crashed += WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM;
    }
    std::printf("done: %d rounds, %d crashed, %d hung\n", rounds, crashed, hung);
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, void (*)()> attacks{
        {"freed-objects", use_freed_objects},
        {"exits-in-calls", exit_in_a_call},
        {"closed-descriptors", close_all_descriptors},
        {"unmapped-rings", unmap_what_is_shared},
        {"garbled-rings", garble_rings},
        {"exhausted-objects", exhaust_objects},
        {"any-end", end_somehow},
        {"unloaded-library", unload_the_library},
        {"wild-requests", post_wild_requests},
        {"races", race_with_itself},
        {"threads", use_threads},
        {"misused-events", misuse_events},
    };
    const std::string attack = argc > 1 ? argv[1] : "";
    if (attack == "end-at-once") {
        return 0;
    }
    const bool forks = attack == "forked-children" || attack == "forked-children-after-init";
    if (argc != 3 || (!forks && !attacks.contains(attack))) {
        std::fprintf(stderr, "usage: hostile-verbs ATTACK MILLISECONDS\n");
        return 2;
    }
    const rlimit none{0, 0};
    (void)::setrlimit(RLIMIT_CORE, &none);
    g_end = Clock::now() + std::chrono::milliseconds(std::atoi(argv[2]));
    g_random.seed(std::random_device{}());
    if (forks) {
        fork_children(attack == "forked-children-after-init");
    } else {
        run_in_children(attacks.at(attack), attack == "threads");
    }
    return 0;
}
