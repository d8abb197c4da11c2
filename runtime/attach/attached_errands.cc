// Errands: requests of an attached process that may take long. The daemon has a thread for each process. This thread
// carries out calls in which the kernel pins pages, releases pages, or looks for the owner of a network address. Before
// a memory region, a memory window or an address handle ends, the workers check whether work requests of the process
// still name the object. Each process has one errand at a time, and no other process waits for it.
#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "attach/answering.hpp"
#include "attach/attached_client.hpp"
#include "base/descriptor_reserve.hpp"
#include "base/log.hpp"
#include "base/map_place.hpp"
#include "base/undo.hpp"

namespace pollcore {

// Runs on the daemon's thread for the process. If the errand was cancelled before it began, runs on the control thread.
void AttachedClient::Errand::run() noexcept {
    try {
        if (cancelled.load(std::memory_order_relaxed)) {
            throw Error(ESHUTDOWN, "this attachment is being ended");
        }
        if (carry_out) {
            carry_out();
        }
    } catch (...) {
        failure = std::current_exception();
    }
    over.store(true, std::memory_order_release);
}

void AttachedClient::send_elsewhere(std::shared_ptr<Errand> errand) {
    errands_.push_back(std::move(errand));
    begin_next_errand();
}

void AttachedClient::send_elsewhere(PdId pd, std::function<void()> work,
                                    std::function<void(std::exception_ptr failure)> conclude) {
    auto errand = std::make_shared<Errand>();
    errand->pd = pd;
    errand->carry_out = std::move(work);
    errand->conclude = std::move(conclude);
    send_elsewhere(std::move(errand));
}

template <class Body>
std::shared_ptr<AttachedClient::Errand> AttachedClient::errand(
    std::uint64_t id, PdId pd, std::function<typename Body::Answered(std::exception_ptr failure)> conclude) {
    auto errand = std::make_shared<Errand>();
    errand->pd = pd;
    const auto node = std::make_shared<ReplyNode>(node_for<Body>());
    errand->conclude = [this, id, node, conclude = std::move(conclude)](std::exception_ptr failure) {
        try {
            const typename Body::Answered answered = conclude(std::move(failure));
            reply<Body>(std::move(*node), id, answered);
        } catch (const std::exception& error) {
            refuse<Body>(std::move(*node), id, error);
        }
    };
    return errand;
}

template <class Body>
void AttachedClient::send_elsewhere(std::uint64_t id, PdId pd, std::function<void()> work,
                                    std::function<typename Body::Answered(std::exception_ptr failure)> conclude) {
    auto its = errand<Body>(id, pd, std::move(conclude));
    its->carry_out = std::move(work);
    send_elsewhere(std::move(its));
}

// Begins the next errand if it is ready. Otherwise a later turn asks again.
void AttachedClient::begin_next_errand() {
    if (errands_.empty() || errands_.front()->begun) {
        return;
    }
    const std::shared_ptr<Errand> next = errands_.front();
    try {
        if (next->ready && !next->ready()) {
            return;
        }
        next->begun = true;
        if (next->carry_out) {
            ways_.elsewhere([next] { next->run(); });
            return;
        }
    } catch (const std::exception& error) {
        if (is_for_later(error)) {
            return;
        }
        next->begun = true;
        next->failure = std::current_exception();
    }
    next->over.store(true, std::memory_order_release);
}

void AttachedClient::conclude_errands() noexcept {
    for (begin_next_errand();
         left_in_turn_ > 0 && !errands_.empty() && errands_.front()->over.load(std::memory_order_acquire);
         --left_in_turn_) {
        const std::shared_ptr<Errand> errand = std::move(errands_.front());
        errands_.pop_front();
        attempt("what it had asked for", [&] {
            // The daemon's thread for the process may still own a pointer to the errand. So everything that the errand
            // owns is destroyed here.
            (void)std::exchange(errand->ready, nullptr);
            (void)std::exchange(errand->carry_out, nullptr);
            std::exchange(errand->conclude, nullptr)(std::exchange(errand->failure, nullptr));
        });
        begin_next_errand();
    }
}

void AttachedClient::cancel_errands() noexcept {
    for (const auto& errand : errands_) {
        errand->cancelled.store(true, std::memory_order_relaxed);
        if (!errand->begun) {
            errand->begun = true;
            errand->run();
        }
    }
}

void AttachedClient::runtime_stops() noexcept {
    cancel_errands();
    for (conclude_errands(); !errands_.empty(); conclude_errands()) {
        left_in_turn_ = kEndsInTurn;
        runtime_.wait_a_little_here();
    }
}

// ---- Memory ----

void AttachedClient::begin(std::uint64_t id, const wire::RegisterMemory& asked, Handed& handed) {
    struct Registration {
        RegionPlan plan;
        OwnRegion own;
        UniqueMr mr;
    };
    const auto registration = std::make_shared<Registration>();
    OwnRegion& own = registration->own;
    own.place = account_->take(Thing::memory_region);
    if (asked.parent == 0) {
        if (handed.failure) {
            std::rethrow_exception(handed.failure);
        }
        if (handed.memory == nullptr) {
            throw Error(EPROTO, "memory to register comes as one memfd");
        }
        own.memory = std::move(handed.memory);
    } else {
        const auto parent = regions_.find(asked.parent);
        if (parent == regions_.end()) {
            throw Error(EINVAL, "the memory region of which this is to be a part is not this process's");
        }
        own.memory = parent->second.memory;
    }
    const HostMemory& whole = own.memory->mapping;
    if (asked.bytes == 0 || asked.offset > whole.size() || asked.bytes > whole.size() - asked.offset) {
        throw Error(EINVAL, "the memory of which this is to be a part is shorter");
    }
    const std::string device = device_name(asked.device);
    own.pd = pd_for(device, asked.pd);
    own.pinned = account_->take(Thing::pinned_byte, asked.bytes);
    registration->plan = runtime_.plan_region_here(static_cast<std::byte*>(whole.data()) + asked.offset, asked.bytes,
                                                   asked.iova, asked.access, device, own.pd);
    send_elsewhere<wire::RegisterMemory>(
        id, own.pd, [registration] { registration->mr = registration->plan.carry_out(); },
        [this, registration](std::exception_ptr failure) -> wire::Registered {
            if (failure) {
                registration->own = {};
                std::rethrow_exception(failure);
            }
            RegionInfo info;
            try {
                MapPlace place(regions_);
                info = runtime_.add_region_here(registration->plan, registration->mr, {});
                place.value() = std::move(registration->own);
                place.take(info.id);
            } catch (...) {
                send_elsewhere(
                    registration->own.pd, [registration] { registration->mr.reset(); },
                    [registration](const std::exception_ptr&) { registration->own = {}; });
                throw;
            }
            return {.id = info.id, .lkey = info.lkey, .rkey = info.rkey, .handle = info.handle};
        });
}

void AttachedClient::begin(std::uint64_t id, const wire::Deregister& asked) {
    require_own(regions_, asked.region, "memory region");
    const auto ending = std::make_shared<EndingRegion>();
    auto its = errand<wire::Deregister>(id, regions_.at(asked.region).pd,
                                        [this, ending](const std::exception_ptr& failure) -> wire::Nothing {
                                            conclude(*ending, failure);
                                            return {};
                                        });
    its->ready = [this, ending, region = asked.region] {
        if (std::any_of(pools_.begin(), pools_.end(), [&](const auto& pool) { return pool.second.region == region; })) {
            throw Error(EBUSY, "the memory region belongs to a receive pool: close the pool instead");
        }
        return is_unused(*ending, region);
    };
    its->carry_out = [ending] { ending->error = ending->end ? ending->end->carry_out() : 0; };
    send_elsewhere(std::move(its));
}

bool AttachedClient::is_unused(EndingRegion& ending, std::uint64_t region) {
    if (ending.own.empty()) {
        require_own(regions_, region, "memory region");
        ending.search = runtime_.search_region_here(region);
        ending.own = regions_.extract(region);
    }
    if (!ending.search.over()) {
        return false;
    }
    ending.end = runtime_.begin_deregistering_here(region, ending.search);
    ending.unused = true;
    return true;
}

void AttachedClient::conclude(EndingRegion& ending, const std::exception_ptr& failure) {
    try {
        if (!ending.unused) {
            std::rethrow_exception(failure);
        }
        if (ending.end) {
            runtime_.end_deregistering_here(ending.own.key(), ending.error);
        }
    } catch (...) {
        regions_.insert(std::move(ending.own));
        throw;
    }
    // Gives the memory back before the process learns of the end, because the process's next request may need these
    // bytes of its limit.
    ending.own = {};
}

void AttachedClient::begin(std::uint64_t id, const wire::ClosePool& asked) {
    const auto known = pools_.find(asked.handle);
    require_own(pools_, asked.handle, "receive pool");
    if (known->second.region != asked.region || !regions_.contains(asked.region)) {
        throw Error(EINVAL, "the memory region is not that of the receive pool");
    }
    struct Closing {
        EndingRegion region;
        std::map<PoolHandle, OwnPool>::node_type pool;
    };
    const auto closing = std::make_shared<Closing>();
    auto its = errand<wire::ClosePool>(
        id, regions_.at(asked.region).pd,
        [this, closing, handle = asked.handle](const std::exception_ptr& failure) -> wire::Nothing {
            try {
                conclude(closing->region, failure);
            } catch (...) {
                pools_.insert(std::move(closing->pool));
                throw;
            }
            runtime_.end_closing_pool_here(handle);
            counters_used_[closing->pool.mapped().counters] = false;
            closing->pool = {};
            return {};
        });
    its->ready = [this, closing, handle = asked.handle, region = asked.region] {
        if (closing->pool.empty()) {
            require_own(pools_, handle, "receive pool");
            runtime_.begin_closing_pool_here(handle);
            closing->pool = pools_.extract(handle);
        }
        return is_unused(closing->region, region);
    };
    its->carry_out = [closing] { closing->region.error = closing->region.end ? closing->region.end->carry_out() : 0; };
    send_elsewhere(std::move(its));
}

// Ends several memory regions of an ending process by one errand. The queue pairs of the process are gone, so no work
// request names the regions.
void AttachedClient::end_regions() {
    struct Ending {
        RegionEnd end;
        std::shared_ptr<OwnRegion> own;
        int error = ECANCELED;
    };
    const auto all = std::make_shared<std::vector<Ending>>();
    for (; left_in_turn_ > 0 && !regions_.empty(); --left_in_turn_) {
        const auto region = regions_.begin();
        std::optional<RegionEnd> end;
        bool failed = false;
        try {
            end = runtime_.begin_deregistering_here(region->first, UseSearch());
        } catch (const std::exception& error) {
            if (is_for_later(error)) {
                break;
            }
            log_error("client {}: a memory region does not end: {}", number_, error.what());
            failed = true;
        }
        auto own = std::make_shared<OwnRegion>(std::move(region->second));
        regions_.erase(region);
        if (end) {
            all->push_back({.end = *end, .own = std::move(own)});
        } else if (failed) {
            runtime_.keep_until_end(std::move(own));  // the device may still access the region
        }
    }
    if (all->empty()) {
        return;
    }
    send_elsewhere(
        0, [all] { std::for_each(all->begin(), all->end(), [](Ending& one) { one.error = one.end.carry_out(); }); },
        [this, all](const std::exception_ptr&) {
            for (Ending& one : *all) {
                try {
                    runtime_.end_deregistering_here(one.end.region, one.error);
                } catch (const std::exception& error) {
                    log_error("client {}: a memory region does not end: {}", number_, error.what());
                    runtime_.keep_until_end(std::move(one.own));
                }
            }
        });
}

void AttachedClient::begin(std::uint64_t id, const wire::Deallocate& asked) {
    require_own(windows_, asked.handle, "memory window");
    struct Ending {
        Windows::node_type own;
        UseSearch search;
    };
    const auto ending = std::make_shared<Ending>();
    auto its = errand<wire::Deallocate>(id, windows_.at(asked.handle).pd,
                                        [this, ending](const std::exception_ptr& failure) -> wire::Nothing {
                                            try {
                                                if (failure) {
                                                    std::rethrow_exception(failure);
                                                }
                                                runtime_.end_window_here(ending->own.key(), ending->search);
                                            } catch (...) {
                                                windows_.insert(std::move(ending->own));
                                                throw;
                                            }
                                            ending->own = {};
                                            return {};
                                        });
    its->ready = [this, ending, handle = asked.handle] {
        if (ending->own.empty()) {
            require_own(windows_, handle, "memory window");
            ending->search = runtime_.search_window_here(handle);
            ending->own = windows_.extract(handle);
        }
        return ending->search.over();
    };
    send_elsewhere(std::move(its));
}

// ---- Address handles and connecting ----

template <class Body>
void AttachedClient::create_ah(std::uint64_t id, const AhPlan& plan) {
    struct Creation {
        Account::Held place;
        UniqueAh ah;
    };
    const auto creation =
        std::make_shared<Creation>(Creation{.place = account_->take(Thing::address_handle), .ah = {}});
    send_elsewhere<Body>(
        id, plan.pd, [plan, creation] { creation->ah = plan.carry_out(); },
        [this, plan, creation](std::exception_ptr failure) -> wire::AhNamed {
            if (failure) {
                creation->place = {};
                std::rethrow_exception(failure);
            }
            MapPlace own(ahs_, OwnObject{.pd = plan.pd, .place = std::move(creation->place)});
            const AhHandle handle = runtime_.add_ah_here(plan, std::move(creation->ah));
            own.take(handle);
            return {.handle = handle};
        });
}

void AttachedClient::begin(std::uint64_t id, const wire::CreateAh& asked) {
    const std::string device = device_name(asked.device);
    create_ah<wire::CreateAh>(id, runtime_.plan_ah_here(asked.peer, asked.path, device, pd_for(device, asked.pd)));
}

void AttachedClient::begin(std::uint64_t id, const wire::CreateAhTo& asked) {
    const std::string device = device_name(asked.device);
    create_ah<wire::CreateAhTo>(id, runtime_.plan_ah_here(asked.to, device, pd_for(device, asked.pd)));
}

void AttachedClient::begin(std::uint64_t id, const wire::CreateAhBack& asked) {
    const std::string device = device_name(asked.device);
    create_ah<wire::CreateAhBack>(
        id, runtime_.plan_ah_here(std::bit_cast<WideCompletion>(asked.received),
                                  std::span<const std::byte, kGrhBytes>(asked.grh), device, pd_for(device, asked.pd)));
}

void AttachedClient::begin(std::uint64_t id, const wire::DestroyAh& asked) {
    require_own(ahs_, asked.handle, "address handle");
    const auto ending = std::make_shared<EndingAh>();
    auto its = errand<wire::DestroyAh>(id, ahs_.at(asked.handle).pd,
                                       [this, ending](const std::exception_ptr& failure) -> wire::Nothing {
                                           try {
                                               if (failure) {
                                                   if (ending->removed) {
                                                       runtime_.restore_ah_here(ending->own.key());
                                                   }
                                                   std::rethrow_exception(failure);
                                               }
                                               runtime_.end_ah_here(ending->own.key(), ending->search);
                                           } catch (...) {
                                               ahs_.insert(std::move(ending->own));
                                               throw;
                                           }
                                           ending->own = {};
                                           return {};
                                       });
    // Asks the workers twice: first to look for uses of the address handle, then to remove it (D40).
    its->ready = [this, ending, handle = asked.handle] {
        if (ending->own.empty()) {
            require_own(ahs_, handle, "address handle");
            ending->search = runtime_.search_ah_here(handle);
            ending->own = ahs_.extract(handle);
        }
        if (ending->search.over() && !ending->removed) {
            ending->search = runtime_.begin_removing_ah_here(handle, ending->search);
            ending->removed = true;
        }
        return ending->removed && ending->search.over();
    };
    send_elsewhere(std::move(its));
}

void AttachedClient::begin(std::uint64_t id, const wire::ConnectTo& asked) {
    (void)require_qp(asked.handle);
    const AhPlan way = runtime_.plan_way_here(asked.handle, asked.peer, asked.path);
    send_elsewhere<wire::ConnectTo>(
        id, way.pd, [way] { way.find_neighbour(); },
        [this, asked](std::exception_ptr failure) -> wire::Nothing {
            if (failure) {
                std::rethrow_exception(failure);
            }
            (void)require_qp(asked.handle);
            runtime_.connect_here(asked.handle, asked.peer, asked.path);
            return {};
        });
}

void AttachedClient::begin(std::uint64_t id, const wire::ModifyQp& asked) {
    (void)require_qp(asked.handle);
    const QpAttributes attributes = unpack(asked.attributes);
    if (attributes.qkey.has_value()) {
        require_may_have(*attributes.qkey);
    }
    const std::optional<AhPlan> way = runtime_.plan_modify_here(asked.handle, attributes);
    if (!way) {
        runtime_.modify_here(asked.handle, attributes);
        return reply<wire::ModifyQp>(id, {});
    }
    send_elsewhere<wire::ModifyQp>(
        id, way->pd, [way = *way] { way.find_neighbour(); },
        [this, handle = asked.handle, attributes](std::exception_ptr failure) -> wire::Nothing {
            if (failure) {
                std::rethrow_exception(failure);
            }
            (void)require_qp(handle);
            runtime_.modify_here(handle, attributes);
            return {};
        });
}

// ---- Memory that the process registers itself ----

void AttachedClient::require_may_share(const std::string& device) const {
    if (!rights_.own_memory) {
        throw Error(EPERM,
                    "this user may not register memory of its own here: the operator of the daemon can permit it "
                    "(attach.own_memory)");
    }
    if (own_devices_.contains(device) || default_pds_.contains(device)) {
        throw Error(
            EBUSY,
            fmt::format("a context of its own has to be the first that the process asks of device \"{}\"", device));
    }
}

// With an own queue pair on the daemon's CQ, the process can choose what a completion contains. ibv_poll_cq of
// Soft-RoCE only copies it. libmlx5 looks up the queue pair that the completion names, and may copy the completion's
// payload to the address of a receive there: an address that this process has chosen, in the daemon's memory.
void AttachedClient::require_trusted(const SharedContext& context) const {
    if (context.driver_id != RDMA_DRIVER_RXE && !rights_.trusted) {
        throw Error(EPERM,
                    "own memory at this device needs the operator's trust, because the provider believes what the "
                    "process writes: the operator of the daemon has to name this user (attach.own_memory)");
    }
}

void AttachedClient::look_for_abuse() noexcept {
    for (const auto& [device, own] : own_devices_) {
        abused_ = abused_ || runtime_.is_client_device_abused_here(own);
    }
}

void AttachedClient::begin(std::uint64_t id, const wire::ShareContext& asked) {
    struct Opening {
        std::unique_ptr<Device> device;
        SharedContext context;
        ReplyNode node;
    };
    const DeviceConfig& config = runtime_.configured_device(asked.device.string());
    if (!runtime_.device(config.name).has_kernel()) {
        return reply<wire::ShareContext>(id, {});
    }
    require_may_share(config.name);
    const auto opening = std::make_shared<Opening>();
    opening->node = node_for<wire::ShareContext>();
    send_elsewhere(
        0,
        [this, opening, &config] {
            std::unique_ptr<Device> device = runtime_.platform->open_device_to_share(config);
            if (const std::optional<SharedContext> context = device->share()) {
                require_trusted(*context);
                opening->context = *context;
                opening->device = std::move(device);
            }
        },
        [this, id, opening, name = config.name](const std::exception_ptr& failure) {
            try {
                if (failure) {
                    std::rethrow_exception(failure);
                }
                if (ending_) {
                    throw Error(ESHUTDOWN, "this attachment is being ended");
                }
                if (opening->device == nullptr) {
                    return reply<wire::ShareContext>(std::move(opening->node), id, {});
                }
                require_may_share(name);
                std::vector<UniqueFd> back;
                back.emplace_back(::fcntl(opening->context.command_fd, F_DUPFD_CLOEXEC, 0));
                if (!back.back().valid() || is_reserved(back.back().get())) {
                    throw Error(EMFILE, "the daemon has no descriptors left; raise its limit (LimitNOFILE)");
                }
                const auto own = own_devices_.try_emplace(name).first;
                Undo take_back([&]() noexcept {
                    runtime_.remove_client_device_here(own->second);
                    own_devices_.erase(own);
                });
                own->second = runtime_.add_client_device_here(name, number_, std::move(opening->device));
                const PdId pd = pd_for(own->second, 0);
                take_back.keep();
                reply<wire::ShareContext>(std::move(opening->node), id,
                                          {.has_kernel = 1,
                                           .driver_id = opening->context.driver_id,
                                           .pd = pd,
                                           .verbs_handle = runtime_.pd_handle_here(pd)},
                                          std::move(back));
                log_info("client {} has a context of its own of device \"{}\", and registers memory there", number_,
                         name);
            } catch (const std::exception& error) {
                refuse<wire::ShareContext>(std::move(opening->node), id, error);
            }
        });
}

void AttachedClient::begin(std::uint64_t id, const wire::FindKey& asked) {
    const bool is_default = std::any_of(default_pds_.begin(), default_pds_.end(),
                                        [&](const auto& known) { return known.second == asked.pd; });
    if (!is_default) {
        require_own(pds_, asked.pd, "protection domain");
    }
    const auto search = std::make_shared<UseSearch>();
    const auto begun = std::make_shared<bool>(false);
    auto its = errand<wire::FindKey>(id, asked.pd, [search](const std::exception_ptr& failure) -> wire::KeyFound {
        if (failure) {
            std::rethrow_exception(failure);
        }
        return {.in_use = search->user() != nullptr};
    });
    its->ready = [this, search, begun, asked] {
        if (!*begun) {
            *search = runtime_.search_key_here(asked.pd, asked.lkey);
            *begun = true;
        }
        return search->over();
    };
    send_elsewhere(std::move(its));
}

}  // namespace pollcore
