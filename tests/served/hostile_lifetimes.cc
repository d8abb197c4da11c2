// Attacks by objects and processes that end when they should not.
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "hostile_attacks.hpp"
#include "hostile_objects.hpp"

namespace pollcore::test::hostile {

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

namespace {

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

}  // namespace

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

}  // namespace pollcore::test::hostile
