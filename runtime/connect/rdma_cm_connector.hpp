// Connections over rdma_cm (rdma_cm(7)), for verbs devices.
//
// librdmacm opens a context of its own for each device (H13), so it never sees our QPs. It only sends their numbers to
// the peer. It tells us the attributes of each state change, and this class makes the change through
// ConnectingQp::modify. If an address belongs to another device or port than ours, the connection fails with an error
// that names both devices.
//
// The path attributes over rdma_cm:
//   timeout, retry_count, rnr_retry, min_rnr_timer:
//       set on our own QP. The calling side tells the peer the first three; a plain rdma_cm program then uses them for
//       its own QP.
//   traffic_class:
//       the caller's value holds for both directions. If the answering side's value is not 0, it replaces the caller's
//       value for the direction in which the answering side sends.
//   max_rd_atomic, max_dest_rd_atomic:
//       the least of this value, the device's limit, and the peer's limit.
//   mtu:
//       both ends use the MTU of the caller's port. Each end's value must be that MTU, or 0.
//
// On the answering side, a receive may complete before the event `established`. The answering side's QP is in RTS
// before the caller learns that its request was accepted, and then the caller may send at once. If the caller's first
// message arrives before the caller's last handshake message, the device raises IBV_EVENT_COMM_EST; see
// communication_established().
//
// After the event `failed` or `disconnected`, the connector has forgotten the connection.
//
// Thread safety: see Connector.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <rdma/rdma_cma.h>

#include "base/unique_fd.hpp"
#include "connect/connector.hpp"
#include "connect/rdma_cm_address.hpp"

namespace pollcore {

class RdmaCmConnector final : public Connector {
public:
    explicit RdmaCmConnector(Device& device);
    ~RdmaCmConnector() override;

    using Connector::listen;
    [[nodiscard]] ListenerId listen(const std::string& address, PrivateDataForm form) override;
    [[nodiscard]] std::string address_of(ListenerId listener) const override;
    void stop_listening(ListenerId listener) noexcept override;

    [[nodiscard]] ConnectionId connect(const std::string& address, ConnectingQp qp, const PathAttributes& path,
                                       std::span<const std::byte> private_data) override;
    void accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                std::span<const std::byte> private_data) override;
    void reject(ConnectionId request, std::span<const std::byte> private_data) override;
    void disconnect(ConnectionId connection) override;
    void forget(ConnectionId connection) noexcept override;
    void communication_established(std::uint32_t qp_num) override;
    void look_for_withdrawn_requests() override;

    [[nodiscard]] int fd() const noexcept override { return epoll_.get(); }
    [[nodiscard]] std::optional<ConnectEvent> next_event() override;

private:
    struct ChannelCloser {
        void operator()(rdma_event_channel* channel) const noexcept { rdma_destroy_event_channel(channel); }
    };
    struct IdDestroyer {
        // rdma_destroy_id() waits until all taken events of the id are acknowledged. It never waits here, because
        // next_event() acknowledges each event before it acts on the event.
        void operator()(rdma_cm_id* id) const noexcept { (void)rdma_destroy_id(id); }
    };
    using UniqueId = std::unique_ptr<rdma_cm_id, IdDestroyer>;

    enum class State {
        resolving_address,
        resolving_route,
        connecting,
        requested,
        withdrawn,
        finding_neighbour,
        accepting,
        established
    };

    struct Connection {
        ConnectionId number = 0;
        State state{};
        UniqueId id;
        std::string peer;  ///< the peer's address, for error messages
        ConnectingQp qp;
        PathAttributes path;
        PrivateDataForm form = PrivateDataForm::framed;
        std::vector<std::byte> frame;     ///< the private data to send, in this form
        std::uint8_t rd_atomic = 0;       ///< agreed: reads and atomics that we may have in flight
        std::uint8_t dest_rd_atomic = 0;  ///< agreed: reads and atomics of the peer that we serve
        bool disconnect_called = false;
        bool answering = false;  ///< the peer asked for the connection
        UniqueId neighbour;      ///< a second id, which looks up the peer's neighbour entry
        // Only on the calling side:
        CmAddress destination;
        std::vector<std::byte> answer;  ///< the peer's private data
        FlowBlock peer_flow{};
        std::optional<Error> first_failure;   ///< the error for the source address that the routing table chose
        std::vector<CmAddress> sources_left;  ///< our device's addresses that have not been tried as the source yet
    };

    /// A copy of an event of librdmacm. The original is acknowledged before the copy is handled.
    struct CmEvent {
        rdma_cm_event_type type{};
        int status = 0;
        rdma_cm_id* id = nullptr;
        std::uint64_t number = 0;  ///< number of the connection, or of the listener if the event is a request
        std::vector<std::byte> private_data;
        std::uint8_t responder_resources = 0;
        std::uint8_t initiator_depth = 0;
    };

    // rdma_cm_connector.cc: calls from outside
    [[nodiscard]] UniqueId create_id(std::uint64_t number);
    [[nodiscard]] Connection& find_request(ConnectionId request, const char* what);
    void check_path(const PathAttributes& path);
    void check_type(const ConnectingQp& qp) const;
    void push(ConnectEvent event);
    /// Returns the device of the id, such as "RDMA device other port 1", or "" if the id is on our device and port.
    [[nodiscard]] std::string foreign_device(const rdma_cm_id& id) const;
    [[nodiscard]] std::string own_device() const;

    // rdma_cm_steps.cc: the steps of a connection until its QP is in RTS. If a step throws, the connection fails.
    /// Begins to resolve the address. Returns 0, or an errno value.
    [[nodiscard]] int resolve_address(Connection& connection, CmAddress* source);
    /// Tries the next source address. Throws the first failure if there is no other source address.
    void address_failed(Connection& connection, Error failure);
    void address_resolved(Connection& connection);
    void send_request(Connection& connection);
    void agree_as_answerer(Connection& connection);
    /// Begins to look up the peer's neighbour entry. Returns false if the kernel can move the QP without a neighbour
    /// entry.
    [[nodiscard]] bool find_neighbour(Connection& connection);
    void move_and_tell(Connection& connection);
    [[nodiscard]] rdma_conn_param conn_param(const Connection& connection) const;
    /// Asks rdma_cm for the attributes that move the QP to `state`, and for their mask.
    [[nodiscard]] std::pair<ibv_qp_attr, int> attributes_for(const Connection& connection, ibv_qp_state state) const;
    void move_to_rtr_and_rts(Connection& connection);

    // rdma_cm_events.cc
    [[nodiscard]] std::optional<CmEvent> take();
    [[nodiscard]] std::optional<ConnectEvent> handle(CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_of_connection(Connection& connection, CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_request(CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_of_listener(ListenerId listener, const CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_response(Connection& connection, const CmEvent& event);
    /// Called on both sides, when the QP's attributes are agreed. Finds the peer's neighbour entry, then moves the QP
    /// and tells the peer. If the attempt has ended, returns the event that says so.
    [[nodiscard]] std::optional<ConnectEvent> begin_moving(Connection& connection);
    [[nodiscard]] std::optional<ConnectEvent> move(Connection& connection);
    [[nodiscard]] ConnectEvent handle_rejection(Connection& connection, const CmEvent& event);
    /// Forgets the connection, and returns the event that ends it.
    [[nodiscard]] ConnectEvent end(Connection& connection, ConnectEvent::Kind kind, int error, std::string text);
    /// Runs a step. If the step throws, forgets the connection and returns the event `failed`.
    template <class Step>
    [[nodiscard]] std::optional<ConnectEvent> attempt(Connection& connection, Step&& step) {
        try {
            step();
            return std::nullopt;
        } catch (const Error& error) {
            return end(connection, ConnectEvent::Kind::failed, error.code().value(), error.what());
        } catch (const std::bad_alloc&) {
            return end(connection, ConnectEvent::Kind::failed, ENOMEM, {});
        }
    }

    Device& device_;
    std::unique_ptr<rdma_event_channel, ChannelCloser> channel_;
    UniqueFd pending_fd_;            ///< readable while pending_ holds something
    UniqueFd epoll_;                 ///< over the channel and pending_fd_; returned by fd()
    std::uint64_t last_number_ = 0;  ///< connections and listeners share one sequence of numbers
    struct Listener {
        UniqueId id;
        PrivateDataForm form;
    };
    std::unordered_map<ListenerId, Listener> listeners_;
    std::unordered_map<ConnectionId, Connection> connections_;
    /// Requests, in the order in which look_for_withdrawn_requests() checks them. An answered request stays here until
    /// this function removes it.
    std::deque<ConnectionId> requests_;
    bool moved_ = false;                ///< a QP was moved since next_event() took the last event
    std::deque<ConnectEvent> pending_;  ///< events that come from calls of this class, not from the kernel
};

}  // namespace pollcore
