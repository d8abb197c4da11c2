// Attacks by requests, threads and events.
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "hostile_attacks.hpp"
#include "hostile_objects.hpp"

namespace pollcore::test::hostile {

namespace {

// A request with random keys, addresses, lengths and destinations.
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

}  // namespace

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

namespace {

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

}  // namespace

void race_with_itself() {
    run_threads(make(), true);
}

void use_threads() {
    Objects all = make();
    run_threads(all, false);
    end(all);
}

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

}  // namespace pollcore::test::hostile
