#include "two_workers.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "access_record.hpp"
#include "pollcore/runtime.hpp"
#include "stepped_world.hpp"
#include "test_cpus.hpp"

namespace pollcore::sharing {
namespace {

constexpr std::uint32_t kDepth = 128;
constexpr std::uint32_t kPairs = 4;

/// A session on one worker, with connected pairs of queue pairs.
struct Application {
    Application(Runtime& its_runtime, const std::string& worker, std::string its_device)
        : runtime(its_runtime),
          device(std::move(its_device)),
          session(runtime.open_session({.worker = worker})),
          memory(runtime.allocate(8192, Access::all(), device)) {}
    void add_pair() {
        const QueuePairOptions options{.device = device,
                                       .shares = {{.session = &session, .send_depth = kDepth}},
                                       .recv_depth = 1,
                                       .remote_access = RemoteAccess::all()};
        QueuePair& a = qps.emplace_back(runtime.create_queue_pair(options));
        QueuePair& b = others.emplace_back(runtime.create_queue_pair(options));
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }
    void carry_out(std::uint32_t bursts, std::uint32_t burst) {
        std::vector<WorkRequest> requests(burst, {.sge = {memory.addr(), 64, memory.lkey()},
                                                  .remote_addr = memory.addr() + 4096,
                                                  .rkey = memory.rkey(),
                                                  .opcode = Opcode::rdma_write,
                                                  .flags = kSignaled,
                                                  .num_sge = 1});
        for (std::size_t i = 0; i < requests.size(); ++i) {
            requests[i].qp = qps[i / 4 % qps.size()].handle();
        }
        std::vector<Completion> completions(burst);
        for (std::uint32_t round = 0; round < bursts; ++round) {
            if (session.try_submit(requests).accepted != burst) {
                throw std::runtime_error("a burst was refused");
            }
            for (std::uint32_t done = 0; done < burst;) {
                const std::size_t n = session.poll(completions);
                for (std::size_t i = 0; i < n; ++i) {
                    if (!completions[i].ok()) {
                        throw std::runtime_error("a write has failed");
                    }
                }
                done += static_cast<std::uint32_t>(n);
                if (n == 0) {
                    std::this_thread::yield();
                }
            }
        }
    }

    Runtime& runtime;
    std::string device;
    Session session;
    MemoryRegion memory;
    std::vector<QueuePair> qps;
    std::vector<QueuePair> others;
};

Config config(std::uint32_t devices) {
    Config config;
    config.share_cores = true;
    for (std::uint32_t i = 0; i < devices; ++i) {
        config.devices.push_back({.name = "net" + std::to_string(i)});
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
        config.workers.push_back(
            {.name = "w" + std::to_string(i), .core = test::last_cpu() - i % 2, .idle = IdlePolicy::yield});
    }
    config.log_level = LogLevel::error;
    return config;
}

}  // namespace

void run(const TwoWorkers& load) {
    constexpr std::uint32_t kWarmUp = 20;
    Runtime runtime(config(load.devices));
    std::vector<std::unique_ptr<Application>> applications;
    for (std::uint32_t i = 0; i < 2; ++i) {
        name_role(i == 0 ? "pollcore-w0" : "pollcore-w1", kWorkers[i]);
        applications.push_back(
            std::make_unique<Application>(runtime, "w" + std::to_string(i), "net" + std::to_string(i % load.devices)));
    }
    // The two applications add their pairs in turn, so that the allocator may put objects of both applications beside
    // each other.
    for (std::uint32_t i = 0; i < kPairs; ++i) {
        for (const auto& application : applications) {
            application->add_pair();
        }
    }
    std::atomic<std::uint32_t> warm{0};
    std::atomic<std::uint32_t> done{0};
    std::array<std::string, 2> failed;
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] {
            act_as(kNobody);
            const auto wait_for = [](const std::atomic<std::uint32_t>& count, std::uint32_t n) {
                while (count.load() < n) {
                    std::this_thread::yield();
                }
            };
            try {
                applications[i]->carry_out(kWarmUp, load.burst);
                ++warm;
                wait_for(warm, 3);
                act_as(kApplications[i]);
                applications[i]->carry_out(load.bursts, load.burst);
            } catch (const std::exception& error) {
                failed[i] = error.what();
                ++warm;
            }
            act_as(kNobody);
            ++done;
        });
    }
    while (warm.load() < 2) {
        std::this_thread::yield();
    }
    begin();
    ++warm;
    while (done.load() < 2) {
        std::this_thread::yield();
    }
    end();
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const std::string& why : failed) {
        if (!why.empty()) {
            throw std::runtime_error(why);
        }
    }
}

void run(const OneWorker& load) {
    constexpr std::uint32_t kWarmUp = 100;
    testing::SteppedWorld world({.submission_slots = 256, .completion_slots = 256});
    world.add_session();
    world.add_cq();
    testing::SteppedWorld::Qp& qp = world.add_qp({.shares = {{0, kDepth, 1}}});
    world.connect(qp, qp);
    testing::SteppedWorld::Buffer& memory = world.add_buffer(4096);
    std::vector<Completion> completions(load.burst);
    std::vector<WorkRequest> requests(load.burst, testing::SteppedWorld::write(1, qp, *memory.mr));
    const std::array<std::byte, 64> payload{};
    for (std::uint32_t round = 0; round < kWarmUp + load.bursts; ++round) {
        if (round == kWarmUp) {
            begin();
        }
        act_as(kApplications[0]);
        bool taken = true;
        if (load.inline_bytes == 0) {
            taken = world.session().try_submit(requests).accepted == load.burst;
        } else {
            for (const WorkRequest& request : requests) {
                taken = world.session().try_submit_inline(request, std::span(payload).first(load.inline_bytes)) ==
                            Refusal::none &&
                        taken;
            }
        }
        act_as(kWorkers[0]);
        for (int i = 0; i < 3; ++i) {
            (void)world.worker.step(world.now);
        }
        act_as(kApplications[0]);
        const std::size_t polled = world.session().poll(completions);
        act_as(kNobody);
        if (!taken || polled != load.burst) {
            throw std::runtime_error("not everything was carried out");
        }
    }
    end();
}

}  // namespace pollcore::sharing
